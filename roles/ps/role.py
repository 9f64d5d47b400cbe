"""The parameter server as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="ps",
    summary="Hold shards of jobs' parameters, apply updates to them and send them out",
    run="adamctl.roles.ps.server:run",
    options=(
        Option("apply-threads", "threads that apply updates, or auto: half of the cores", str, "auto"),
        Option("memory", "most memory for parameters and rule state, as 8GB or 50%", str, "80%"),
        Option("store", "folder that keeps parameters on disk; taken up again after a restart", str, ""),
        Option("loss-window-s", "most seconds of acknowledged pushes that a crash may take back", float, 5.0),
        Option("loss-window-bytes", "most bytes of shards that may differ from the disk, as 4GB or 10%", str, "4GB"),
    ),
)
