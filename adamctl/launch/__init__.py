"""Starts the roles of a run as processes of this machine, watches over them and leaves nothing behind."""
