"""Programs that measure other systems doing the same work; each runs alone, in an interpreter that may lack adamctl."""
