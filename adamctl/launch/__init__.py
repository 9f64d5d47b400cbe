"""Starts the roles of a run as processes of this machine, supervises them and leaves nothing behind."""
