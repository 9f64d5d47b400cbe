"""The coordinator as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="coordinator",
    summary="Run one job: hand out ranges, order evaluations and checkpoints",
    run="adamctl.roles.coordinator.server:run",
    options=(
        Option("experiment", "the resolved experiment to run (TOML, or JSON)", str, None),
        Option("set", "KEY=VALUE, set any key of the experiment, e.g. cluster.workers=2", str, None, multiple=True),
        Option("run-dir", "folder for metrics, checkpoints and the summary", str, "."),
        Option("resume", "auto, none, or the path of a checkpoint or run folder", str, "none"),
        Option("job", "name of the job on the cluster; by default the experiment's, or that and a number", str, None),
        Option("tended", "the program that started this also starts the servers and workers", bool, False),
        Option("wait", "seconds to wait for servers and workers before giving up", float, 60.0),
    ),
    arenas=2,
)
