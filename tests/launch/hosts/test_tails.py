"""Ends of logs of other hosts: fetched, kept, and grown by what is new."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.launch.hosts.tails import MISSING, Tails, new_lines
from adamctl.wire.messages import HostLog


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "abc", "abc"),
        ("abc", "abc", ""),
        ("abc", "bcd", "d"),
        ("abc", "abcde", "de"),
        ("a", "aaa", "aa"),
        ("xab", "abab", "ab"),
    ],
)
def test_only_what_was_not_there_before_is_new(before: str, now: str, new: str) -> None:
    assert new_lines(tuple(before), tuple(now)) == tuple(new)


def test_a_gap_is_said() -> None:
    assert new_lines(tuple("abc"), tuple("xyz")) == (MISSING, "x", "y", "z")


def test_logs_grow_and_those_of_this_machine_are_left_alone(tmp_path: Path) -> None:
    tails = Tails(tmp_path, {"coordinator"})
    tails.keep([HostLog("worker-1", "h1", "/l", ("a", "b")), HostLog("coordinator", "h1", "/l", ("x",))])
    tails.keep([HostLog("worker-1", "h1", "/l", ("b", "c")), HostLog("ps-1", "h2", "", (), "its host does not answer")])
    assert (tmp_path / "worker-1.log").read_text() == "a\nb\nc\n"
    assert [file.name for file in tmp_path.iterdir()] == ["worker-1.log"]
    assert tails.problems == {"ps-1": "h2: its host does not answer"}


def test_a_name_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    Tails(tmp_path / "in", ()).keep([HostLog("../out", "h1", "/l", ("a",))])
    assert list(tmp_path.iterdir()) == []
