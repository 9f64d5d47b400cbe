"""Batch runs, of which no loss of a process may cost a bit."""
