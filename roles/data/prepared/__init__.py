"""Sets of examples written once, ready to serve: their files, how they are written, and what is damaged in them."""
