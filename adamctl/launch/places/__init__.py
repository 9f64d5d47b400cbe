"""Engines that place host agents, one a file: `places.py` says what each of them promises."""
