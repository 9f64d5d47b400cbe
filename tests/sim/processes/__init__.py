"""Processes whose shells are the real ones: their event loops, and what connects them, are the simulator's."""
