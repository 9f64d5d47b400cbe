"""Data sets with names: where they lie, and how they are fetched and verified."""
