"""Data behind URLs: which may be fetched, how (fsspec), and where fetched files are kept for a while."""
