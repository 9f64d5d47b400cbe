"""What Slurm's answers mean for hosts."""

from __future__ import annotations

from math import inf

import pytest

from adamctl.launch.places.core.slurm_jobs import LEAVE_S, JobRow, NodeRow, SlurmJobs, fitting, job_rows, node_rows
from adamctl.launch.places.places import Draining, Lost, Notice

NODES = {"h[1-2]": ["h1", "h2"], "h2": ["h2"], "h4": ["h4"]}


def running(job: str = "1", nodes: str = "h[1-2]", left_s: float = inf) -> JobRow:
    return JobRow(job, "RUNNING", left_s, nodes, "None")


def up(*nodes: str) -> list[NodeRow]:
    return [NodeRow(node, "allocated", "none") for node in nodes]


def begun() -> SlurmJobs:
    jobs = SlurmJobs()
    jobs.submitted("1", "")
    assert look(jobs, [running()], up("h1", "h2")) == ([], [])
    assert jobs.nodes == ["h1", "h2"]
    return jobs


def look(jobs: SlurmJobs, rows: list[JobRow], nodes: list[NodeRow]) -> tuple[list[Notice], list[str]]:
    return jobs.look(jobs.names, rows, nodes, NODES)


def test_rows_are_what_slurm_prints() -> None:
    text = "12|RUNNING|1-02:03:04|h[1-2]|None\n13|PENDING|10:00||(Resources|x)\nslurm_load_jobs error\n"
    assert job_rows(text) == [
        JobRow("12", "RUNNING", 93784.0, "h[1-2]", "None"),
        JobRow("13", "PENDING", 600.0, "", "(Resources|x)"),
    ]
    assert node_rows("h1|allocated*|none\nh2|draining@|new disk\nh2|draining@|new disk\n") == [
        NodeRow("h1", "allocated", "none"),
        NodeRow("h2", "draining", "new disk"),
    ]


def test_a_job_that_waits_says_for_what_and_says_it_once() -> None:
    jobs = SlurmJobs()
    jobs.submitted("1", "")
    waits = JobRow("1", "PENDING", 600.0, "", "Resources")
    assert look(jobs, [waits], []) == ([], ["Slurm job 1 waits for its hosts: Resources"])
    assert look(jobs, [waits], []) == ([], [])
    other = JobRow("1", "PENDING", 600.0, "", "a \x1b[2J")
    assert look(jobs, [other], []) == ([], ["Slurm job 1 waits for its hosts: a \\x1b[2J"])


def test_a_job_that_was_submitted_since_is_not_one_that_has_ended() -> None:
    jobs = begun()
    asked = jobs.names
    jobs.submitted("2", "-2")
    assert jobs.look(asked, [running()], up("h1", "h2"), NODES) == ([], [])
    assert look(jobs, [running(), running("2", "h4")], up("h1", "h2", "h4")) == ([], [])
    assert look(jobs, [running()], up("h1", "h2"))[0] == [Lost("h4-2", "Slurm job 2: it is not in the queue any more")]


@pytest.mark.parametrize("state", ["down", "fail", "failing", "powered_down", "reboot_issued"])
def test_a_node_that_is_down_is_lost_once(state: str) -> None:
    jobs = begun()
    nodes = [NodeRow("h1", state, "Not responding"), *up("h2")]
    notices, _ = look(jobs, [running()], nodes)
    assert [(type(notice), notice.host) for notice in notices] == [(Lost, "h1")]
    assert "Not responding" in notices[0].why
    assert look(jobs, [running()], nodes) == ([], [])


def test_a_node_that_only_does_not_answer_is_not_lost() -> None:
    assert look(begun(), [running()], node_rows("h1|allocated*|none\nh2|allocated|none")) == ([], [])


def test_a_node_that_a_job_no_longer_has_is_lost() -> None:
    notices, _ = look(begun(), [running(nodes="h2")], up("h2"))
    assert [notice.host for notice in notices] == ["h1"]


def test_nodes_that_could_not_be_asked_for_are_not_lost() -> None:
    jobs = begun()
    assert jobs.look(jobs.names, [running()], [], {}) == ([], [])


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (JobRow("1", "TIMEOUT", 0.0, "h[1-2]", "TimeLimit"), "Slurm job 1: timeout, TimeLimit"),
        (JobRow("1", "CANCELLED", 9.0, "h[1-2]", "None"), "Slurm job 1: cancelled"),
    ],
)
def test_with_a_job_all_its_hosts_are_lost(row: JobRow, why: str) -> None:
    jobs = begun()
    assert look(jobs, [row], up("h1", "h2"))[0] == [Lost("h1", why), Lost("h2", why)]
    assert jobs.names == []


def test_a_job_that_ends_before_it_has_hosts_is_said() -> None:
    jobs = SlurmJobs()
    jobs.submitted("1", "")
    row = JobRow("1", "CANCELLED", 9.0, "", "None")
    assert look(jobs, [row], []) == ([], ["Slurm job 1 has ended: cancelled"])


def test_hosts_drain_before_the_time_limit() -> None:
    jobs = begun()
    assert look(jobs, [running(left_s=121.0)], up("h1", "h2")) == ([], [])
    why = "Slurm job 1 ends in 119 s"
    assert look(jobs, [running(left_s=119.0)], up("h1", "h2"))[0] == [
        Draining("h1", 119.0, why),
        Draining("h2", 119.0, why),
    ]
    assert look(jobs, [running(left_s=110.0)], up("h1", "h2")) == ([], [])


@pytest.mark.parametrize(("left_s", "deadline_s"), [(inf, LEAVE_S), (5000.0, 5000.0)])
def test_an_administrators_drain_leaves_as_much_time_as_the_job_has(left_s: float, deadline_s: float) -> None:
    nodes = [*up("h1"), NodeRow("h2", "draining", "new disk")]
    notices, _ = look(begun(), [running(left_s=left_s)], nodes)
    assert notices == [Draining("h2", deadline_s, "Slurm drains node h2: new disk")]


def test_only_nodes_that_are_large_enough_and_usable_count() -> None:
    text = "h1|2|idle\nh2|8|allocated*\nh3|8|down*\nh4|8|drained\nh2|8|allocated*\nh5|16|mixed\nbroken"
    assert fitting(text, 8) == 2
    assert fitting(text, 2) == 3
