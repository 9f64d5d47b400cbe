"""What `adamctl launch` prints, one kind of text a file: scripts and descriptions that people read and change."""
