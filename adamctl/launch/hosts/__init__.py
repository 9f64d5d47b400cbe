"""A run on many machines: agents that dial in, what is placed where, and what happens when a machine is lost."""
