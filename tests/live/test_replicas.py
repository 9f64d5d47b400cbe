"""Replicas of several partitions in the live view: who waits, for whom, and who is slow."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from adamctl.live.display import render
from adamctl.live.reading import ProcessReading
from adamctl.live.replicas import member_lines, waits_text
from adamctl.live.view import view_of
from adamctl.roles.coordinator.core.progress import MemberRow, ReplicaRow, RoleRow, RunProgress


def member(partition: int, node: str, **told: object) -> MemberRow:
    return MemberRow(partition=partition, node=node, host="here", state="training", **told)  # type: ignore[arg-type]


def replica(number: int, *members: MemberRow) -> ReplicaRow:
    cut = "rows conv2d1, units dense1"
    return ReplicaRow(
        replica=number, group_epoch=1, state="training", members=members, cut=cut, proposed="conv2d1: rows at 9"
    )


REPLICAS = tuple(
    replica(
        number,
        member(0, f"worker-{2 * number + 1}", flights=2, waiting_share=0.62, waits_for="1", waits_for_share=0.6),
        member(1, f"worker-{2 * number + 2}", flights=1, waiting_share=0.04, waits_for="0", slow=True),
    )
    for number in range(3)
)
ROLES = (
    RoleRow(role="coordinator", node="coordinator", state="running"),
    RoleRow(role="ps", node="ps-1", state="serving"),
    *(RoleRow(role="worker", node=f"worker-{number}", state="training") for number in range(1, 8)),
)
PROGRESS = RunProgress(
    state="training", job="mnist", passes_total=3, partitions=2, replicas=REPLICAS, roles=ROLES, lobby=("worker-7",)
)


def drawn(progress: RunProgress, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(render(view_of(progress, {}), width, height))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ({}, "-"),
        ({"waiting_share": 0.0}, "0%"),
        ({"waiting_share": 0.03, "waits_for": "1", "waits_for_share": 0.03}, "3%"),
        ({"waiting_share": 0.41, "waits_for": "1", "waits_for_share": 0.41}, "41%, for 1"),
        ({"waiting_share": 0.41, "waits_for": "2", "waits_for_share": 0.25}, "41%, most for 2"),
        ({"waiting_share": 0.5, "waits_for": "servers", "waits_for_share": 0.5}, "50%, for servers"),
        ({"waiting_share": 0.02, "slow": True}, "2%, slow"),
    ],
)
def test_how_much_a_partition_waits_and_for_whom(told: dict[str, object], text: str) -> None:
    assert waits_text(member(0, "w", **told)) == text


def test_each_partition_has_a_row_and_its_process_is_in_no_other() -> None:
    view = view_of(PROGRESS, {"worker-2": ProcessReading(0.5, 300 << 20)})
    assert [line.node for line in view.roles] == ["coordinator", "ps-1", "worker-7"]
    lines = view.members(10)
    assert [(line.replica, line.part, line.node) for line in lines] == [
        ("0", "0", "worker-1"), ("", "1", "worker-2"), ("1", "0", "worker-3"), ("", "1", "worker-4"),
        ("2", "0", "worker-5"), ("", "1", "worker-6"),
    ]  # fmt: skip
    assert (lines[1].cpu, lines[1].memory, lines[1].slow) == ("50%", "300.0 MiB", True)
    assert (lines[0].cpu, lines[0].flights, lines[0].waits) == ("-", "2", "62%, for 1")


def test_where_there_is_no_room_replicas_have_a_row_each_or_one_together() -> None:
    readings = {"worker-1": ProcessReading(0.5, 100 << 20), "worker-2": ProcessReading(0.75, 100 << 20)}
    lines = member_lines(REPLICAS, readings, 5)
    assert [(line.replica, line.part, line.node) for line in lines] == [
        (str(number), "0-1", "2 workers") for number in range(3)
    ]
    assert (lines[0].cpu, lines[0].memory, lines[0].waits) == ("125%", "200.0 MiB", "4%-62%, slow: 1")
    assert lines[0].slow and lines[1].cpu == "-"
    (together,) = member_lines(REPLICAS, {}, 2)
    assert (together.replica, together.node, together.waits) == ("3 replicas", "6 workers", "4%-62%, 3 slow")


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("height", [16, 24, 40])
def test_no_line_is_cut_off_and_all_fit_the_terminal(width: int, height: int) -> None:
    lines = drawn(PROGRESS, width, height)
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines), "\n".join(lines)
    if height >= 24:
        assert len(lines) < height, "\n".join(lines)
    assert any("slow" in line for line in lines) and lines[-2:] == [
        "cut  rows conv2d1, units dense1",
        "even conv2d1: rows at 9",
    ]
    assert any(" host" in line for line in lines) == (width >= 100)


def test_after_the_end_there_are_no_replicas_and_all_roles_are_told() -> None:
    progress = RunProgress(state="ended", job="mnist", passes_total=3, partitions=2, replicas=REPLICAS, roles=ROLES)
    view = view_of(progress, {})
    assert not view.replicas and len(view.roles) == len(ROLES)


def test_time_waited_is_not_for_data_alone() -> None:
    assert "waited for data" in dict(view_of(PROGRESS, {}).facts)
