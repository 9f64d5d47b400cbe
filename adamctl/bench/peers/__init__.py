"""Programs that measure other systems on the same work; each runs alone, in an interpreter that may lack adamctl."""
