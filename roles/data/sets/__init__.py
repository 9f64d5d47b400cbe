"""An open data set: what it visits, decodes, keeps and skips."""
