"""`adamctl launch ray`: the command that submits a run to a Ray cluster."""

from __future__ import annotations

from pathlib import PurePath
from shlex import quote

from adamctl.launch.scripts.wanted import Wanted

STOP_WAIT_S = 60
"""Seconds that Ray lets a job take after `ray job stop`; its default of 3 s is too short for a checkpoint."""


def ray_script(wanted: Wanted, folder: PurePath) -> str:
    """Returns the script; `folder` is the one that paths in the command are relative to, on every node."""
    cores = f" --cores {wanted.cores}" if wanted.cores else ""
    train = f"adamctl train {quote(wanted.experiment)} --on ray {wanted.flags}{wanted.time_flag}{cores}"
    extra = "" if wanted.insecure else ",tls"
    # One word: versions of Ray join several in different ways.
    line = f"cd {quote(str(folder))} && exec {train} --resume none --plain"
    return f"""#!/bin/sh
# Trains {wanted.experiment} on {wanted.hosts} nodes of a Ray cluster. Run it with: sh THIS_FILE http://HEAD:8265
# Every node has adamctl[ray{extra}] of the same version for Ray's Python, and sees the folder and the data.
# The front runs on the head. `ray job stop` gives it {STOP_WAIT_S} s for its last checkpoint. Ray reads that where
# the job runs, so it is set there and not here.
set -eu
exec ray job submit --address "${{1:?give the address of the cluster, such as http://head:8265}}" \\
    --submission-id "adamctl-{wanted.name}-$(date +%Y%m%d-%H%M%S)" \\
    --runtime-env-json '{{"env_vars": {{"RAY_JOB_STOP_WAIT_TIME_S": "{STOP_WAIT_S}"}}}}' \\
    -- sh -c {quote(line)}
"""
