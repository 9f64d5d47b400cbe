"""What Slurm is told: options of `sbatch` and `srun`, the script of a job of agents; and how it writes times."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from pathlib import PurePath

from adamctl.launch.places.places import HostNeeds

WARNING_S = 120
"""Seconds before a job's time limit at which its batch script gets SIGTERM, and hosts are said to drain."""
STOP_DEADLINE_S = 20.0
"""Seconds that a front takes at most for its last checkpoint, where Slurm gives it so many."""
_KILL_MARGIN_S = 5.0
STEP_OPTIONS = ("--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1", "--cpu-bind=none")
"""Without the first three the end of one agent, or of its node, ends all others."""
_KEPT_IN_A_JOB = ("SLURM_CONF",)


@dataclass(frozen=True)
class SlurmJob:
    """A job of agents that is to be submitted; their output goes to a file in `folder`."""

    name: str
    hosts: int
    folder: PurePath
    partition: str = ""


def submit_options(job: SlurmJob, each: HostNeeds) -> tuple[str, ...]:
    """Returns the options of `sbatch` for a job of one agent per node.

    The job is not requeued: its front asks for other hosts when some are lost, and their agents get other names.
    """
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--nodes={job.hosts}",
        "--ntasks-per-node=1",
        *((f"--cpus-per-task={each.cores}",) if each.cores else ()),
        *((f"--mem={mebibytes(each.memory_bytes)}M",) if each.memory_bytes else ()),
        *((f"--time={slurm_time(each.time_s)}",) if each.time_s else ()),
        *((f"--partition={job.partition}",) if job.partition else ()),
        "--exclusive",
        "--no-kill",
        "--no-requeue",
        "--export=ALL",
        f"--output={job.folder}/slurm-%j.log",
    )


def hosts_name(job: str) -> str:
    """Returns the name of the jobs of single agents that a front within this job submits; its script knows it, too."""
    return f"adamctl-hosts-{job}"


def agents_script(line: Sequence[str], each: HostNeeds, suffix: str = "") -> str:
    """Returns the script of a job of agents: one step for all of them."""
    return f"#!/bin/bash\nexec {shlex.join(step_line(line, each, suffix))}\n"


_AGAIN = """
trap : TERM # which is for the agent; it ends first
"$@" --name "$SLURMD_NODENAME"; status=$?
asked() { squeue --noheader --jobs="$SLURM_JOB_ID" --format="$1"; }
if [ "$status" = 3 ]; then
    first=$(asked %B)
    while [ "$(asked %T)" = RUNNING ]; do
        if ! scontrol show hostnames "$(asked %N)" | grep -qx "$first"; then
            scontrol requeue "$SLURM_JOB_ID" || scancel "$SLURM_JOB_ID"
        fi
        sleep 5
    done
fi
exit "$status"
"""
"""An agent within the front's own job. When the front has been away for a minute, the agent ends with status 3. If it
was away because Slurm lost the node of the job's script, nobody else would start the job again, or end it."""


def step_line(line: Sequence[str], each: HostNeeds, suffix: str = "", hosts: int = 0) -> tuple[str, ...]:
    """Returns the `srun` that starts an agent on each node of a job; within the front's own job, on `hosts` of them.

    Each agent gets the name of its node. `--overlap` lets it share the node with the script's own processes.
    """
    count = (f"--nodes={hosts}", f"--ntasks={hosts}") if hosts else ()
    named = _AGAIN if hosts else f'exec "$@" --name "$SLURMD_NODENAME{suffix}"'
    cores = (f"--cpus-per-task={each.cores}",) if each.cores else ()
    return ("srun", *STEP_OPTIONS, *cores, "--overlap", *count, "bash", "-c", named, "agent", *line)


def outer_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment to submit another job from: within a job, without what describes that one.

    `srun` reads SLURM_* as its own options, so those of the outer job would decide about the inner one.
    """
    if "SLURM_JOB_ID" not in environment:
        return dict(environment)
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(("SLURM_", "SLURMD_", "SRUN_")) or name in _KEPT_IN_A_JOB
    }


def stop_deadline_s(kill_wait_s: float) -> float:
    """Returns how many seconds the last checkpoint may take before Slurm kills what it has asked to end."""
    return max(min(STOP_DEADLINE_S, kill_wait_s - _KILL_MARGIN_S), 0.0)


def kill_wait_s(configuration: str) -> float:
    """Returns KillWait of the output of `scontrol show config`; Slurm's default of 30 s if it is not there."""
    found = re.search(r"^KillWait\s*=\s*(\d+)", configuration, re.MULTILINE)
    return float(found[1]) if found else 30.0


def mebibytes(count: int) -> int:
    """Returns bytes as whole MiB, rounded up."""
    return ceil(count / (1 << 20))


def slurm_time(seconds: float) -> str:
    """Returns a time limit as Slurm reads it, days-hours:minutes:seconds, rounded up to whole seconds."""
    minutes, second = divmod(ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"


def seconds_of(text: str) -> float:
    """Returns a time as Slurm writes it, `[D-[HH:]][MM:]SS`, in seconds; infinite where it is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+)", text.strip())
    if found is None:
        return inf
    days, first, second, last = (int(group or 0) for group in found.groups())
    hours, minutes = (first, second) if found[3] is not None else (0, first)
    return float(((days * 24 + hours) * 60 + minutes) * 60 + last)
