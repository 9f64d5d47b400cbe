"""Runs on many hosts against their bars: many agents at one front, roles through agents against by hand, losses."""
