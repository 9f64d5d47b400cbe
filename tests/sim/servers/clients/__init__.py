"""Clients of parameter servers: the real one over a simulated network, and some that try what it never would."""
