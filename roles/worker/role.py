"""The worker as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="worker",
    summary="Train a replica of the model with many lock-free threads",
    run="adamctl.roles.worker.server:run",
    options=(
        Option("threads", "compute threads; by default one per core of this machine", int, None),
        Option("job", "train only this job; by default any job that needs workers", str, None),
        Option(
            "checkpoint-root",
            "folder in which checkpoints of runs without parameter servers may be written and read; by default runs",
            str,
            None,
            multiple=True,
        ),
        Option("once", "leave when the job has ended instead of waiting for the next one", bool, False),
    ),
)
