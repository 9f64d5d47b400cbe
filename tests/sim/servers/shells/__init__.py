"""A parameter server: its real shells and cores over a simulated disk, and what must hold of it."""
