"""Binding: what is read of a machine, which thread goes where, and that a thread really goes there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from adamctl.kernels.threads import (
    Binder,
    Node,
    can_bind,
    chosen_binding,
    cores_for,
    describe,
    node_of,
    parse_cores,
    read_nodes,
    shown,
    usable_cores,
)

TWO = (Node(0, (0, 1, 2, 3)), Node(1, (4, 5, 6, 7)))
ONE = (Node(0, (0, 1, 2, 3)),)


def fake_sysfs(folder: Path, **cores: str) -> Path:
    for name, text in cores.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(text + "\n")
    (folder / "online").write_text("0-1\n")
    return folder


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("5", (5,)), ("", ()), ("\n", ())]
)
def test_lists_of_cores_are_read_and_written(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores
    assert shown(cores) == text.strip()


def test_two_nodes_are_read(tmp_path: Path) -> None:
    folder = fake_sysfs(tmp_path, node1="4-7", node0="0-3")
    assert read_nodes(folder, range(8)) == TWO


def test_only_cores_that_may_be_used_count_and_nodes_without_any_do_not(tmp_path: Path) -> None:
    folder = fake_sysfs(tmp_path, node0="0-3", node1="4-7", node2="")
    assert read_nodes(folder, [1, 5, 6]) == (Node(0, (1,)), Node(1, (5, 6)))
    assert read_nodes(folder, [4, 7]) == (Node(1, (4, 7)),)


def test_a_machine_that_says_nothing_is_one_node(tmp_path: Path) -> None:
    assert read_nodes(tmp_path / "none", [0, 2]) == (Node(0, (0, 2)),)
    assert read_nodes(fake_sysfs(tmp_path, node0="what?"), [0, 1]) == (Node(0, (0, 1)),)


def test_nodes_that_leave_out_a_core_are_not_believed(tmp_path: Path) -> None:
    assert read_nodes(fake_sysfs(tmp_path, node0="0-1"), [0, 1, 2]) == (Node(0, (0, 1, 2)),)


def test_neighbouring_threads_share_a_node_and_nodes_are_filled_evenly() -> None:
    assert [node_of(thread, 8, TWO).number for thread in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [node_of(thread, 2, TWO).number for thread in range(2)] == [0, 1]
    assert [node_of(thread, 24, TWO).number for thread in range(24)].count(0) == 12
    uneven = (Node(0, (0,)), Node(1, (1, 2, 3)))
    assert [node_of(thread, 4, uneven).number for thread in range(4)] == [0, 1, 1, 1]


def test_nodes_bind_where_there_are_several() -> None:
    assert cores_for(0, 2, TWO, "node") == (0, 1, 2, 3)
    assert cores_for(1, 2, TWO, "node") == (4, 5, 6, 7)
    assert cores_for(0, 2, ONE, "node") is None
    assert cores_for(0, 2, TWO, "off") is None


@pytest.mark.parametrize("threads", range(1, 9))
def test_each_thread_has_a_core_of_its_own_where_there_are_enough(threads: int) -> None:
    cores = [cores_for(thread, threads, TWO, "core") for thread in range(threads)]
    assert len(set(cores)) == threads
    assert all(core is not None and len(core) == 1 for core in cores)
    for thread, core in enumerate(cores):
        assert core is not None and core[0] in node_of(thread, threads, TWO).cores


def test_too_many_threads_for_the_cores_are_never_put_on_one() -> None:
    assert cores_for(0, 5, ONE, "core") is None
    assert cores_for(8, 9, TWO, "core") == (4, 5, 6, 7)


def test_the_environment_chooses() -> None:
    assert [chosen_binding(value) for value in ("", "off", "node", "core", "?")] == [
        "node", "off", "node", "core", "node",
    ]  # fmt: skip


def test_it_is_said_in_a_line() -> None:
    if can_bind():
        assert describe(2, TWO, "node") == "bound to cores: 0 to 0-3, 1 to 4-7"
        assert describe(8, TWO, "node") == "bound to cores: 0-3 to 0-3, 4-7 to 4-7"
        assert describe(2, ONE, "node") == "left to the system: one node, which other processes share"
        assert describe(2, ONE, "off") == "left to the system: binding is off"


def test_a_refusal_leaves_the_thread_as_it_is() -> None:
    def refuse(_: int, cores: object) -> None:
        raise PermissionError(cores)

    Binder(2, TWO, "node", refuse).bind(0)


@pytest.mark.skipif(not can_bind(), reason="this system offers no binding")
def test_a_thread_is_bound_and_others_are_not() -> None:
    mine, found = usable_cores(), []
    one_core = (Node(0, mine[:1]),)

    def work() -> None:
        Binder(1, one_core, "core").bind(0)
        found.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert found == [set(mine[:1])]
    assert usable_cores() == mine
