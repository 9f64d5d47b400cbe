"""Augmentation: what is left to chance, drawn from keys, and what it does to examples (Adam 3.1, 4.3.3)."""
