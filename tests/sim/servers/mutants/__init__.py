"""Planted faults of servers and their clients, by the part in which the mistake is made."""
