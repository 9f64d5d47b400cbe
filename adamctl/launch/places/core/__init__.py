"""What engines decide, without asking them: texts for Slurm, what its answers mean, names of hosts."""
