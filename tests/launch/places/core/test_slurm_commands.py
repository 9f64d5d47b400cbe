"""What Slurm is told, word by word, and the times it writes."""

from __future__ import annotations

import subprocess
from math import inf
from pathlib import PurePath

import pytest

from adamctl.launch.places.core.slurm_commands import (
    SlurmJob,
    agents_script,
    kill_wait_s,
    outer_environment,
    seconds_of,
    slurm_time,
    step_line,
    stop_deadline_s,
    submit_options,
)
from adamctl.launch.places.places import HostNeeds

LINE = ("/opt/my env/bin/python", "-m", "adamctl", "host", "start", "--front", "10.0.0.1:7000")


def test_a_job_asks_for_whole_nodes_and_outlives_the_loss_of_one() -> None:
    options = submit_options(
        SlurmJob("digits-1", 8, PurePath("/runs/1"), "long"), HostNeeds(16, memory_bytes=(3 << 20) + 1, time_s=5400)
    )
    assert {
        "--job-name=digits-1",
        "--nodes=8",
        "--ntasks-per-node=1",
        "--cpus-per-task=16",
        "--mem=4M",
        "--time=0-01:30:00",
        "--partition=long",
        "--output=/runs/1/slurm-%j.log",
        "--exclusive",
        "--no-kill",
        "--no-requeue",
    } <= set(options)


def test_what_is_not_asked_for_is_left_to_slurm() -> None:
    options = " ".join(submit_options(SlurmJob("digits-1", 1, PurePath("/runs/1")), HostNeeds(0)))
    assert not any(word in options for word in ("--mem", "--time", "--partition", "--cpus-per-task"))
    assert "--cpus-per-task" not in " ".join(step_line(LINE, HostNeeds(0)))


def test_one_step_starts_all_agents_and_none_ends_with_another() -> None:
    words = step_line(LINE, HostNeeds(16), hosts=3)
    assert words[0] == "srun"
    assert {"--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--cpu-bind=none", "--cpus-per-task=16"} <= set(words)
    assert {"--nodes=3", "--ntasks=3"} <= set(words)


def test_the_script_names_each_agent_by_its_node() -> None:
    """The script is run with a `srun` that shows its command, as a node would run it."""
    script = agents_script(LINE, HostNeeds(2), "-$SLURM_JOB_ID").replace("exec srun", "exec show", 1)
    show = 'show() { while [ "$1" != bash ]; do shift; done; shift; /bin/bash "$@"; }\n'
    script = show + script.replace("exec show", "show").replace('exec "$@"', r"printf \"%s\\n\" \"\$@\"")
    script = script.replace(r"\"", '"').replace(r"\$", "$")
    done = subprocess.run(
        ["bash", "-c", script],
        env={"SLURMD_NODENAME": "h3", "SLURM_JOB_ID": "71"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.stdout.splitlines() == [*LINE, "--name", "h3-71"], done.stderr


def test_a_job_within_a_job_inherits_nothing_of_it() -> None:
    inside = {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "2",
        "SLURMD_NODENAME": "h1",
        "SLURM_CONF": "/s.conf",
        "PATH": "/bin",
    }
    assert outer_environment(inside) == {"SLURM_CONF": "/s.conf", "PATH": "/bin"}
    outside = {"SLURM_ACCOUNT": "lab", "PATH": "/bin"}
    assert outer_environment(outside) == outside


@pytest.mark.parametrize(("kill_wait", "deadline"), [(30, 20), (20, 15), (5, 0), (2, 0)])
def test_a_last_checkpoint_ends_before_slurm_kills(kill_wait: float, deadline: float) -> None:
    assert stop_deadline_s(kill_wait) == deadline


def test_kill_wait_is_read_from_what_slurm_shows() -> None:
    assert kill_wait_s("KeepAliveTime = 5\nKillOnBadExit           = 0\nKillWait                = 42 sec\n") == 42
    assert kill_wait_s("") == 30


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("9:59", 599),
        ("55", 55),
        ("1:02:03", 3723),
        ("2-00:00:10", 172810),
        ("1-02:03:04", 93784),
        ("UNLIMITED", inf),
        ("NOT_SET", inf),
        ("INVALID", inf),
        ("", inf),
    ],
)
def test_times_are_read_as_slurm_writes_them(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("seconds", [1, 59, 60, 3599.5, 86400, 200000])
def test_times_are_written_as_slurm_reads_them(seconds: float) -> None:
    assert 0 <= seconds_of(slurm_time(seconds)) - seconds < 1
