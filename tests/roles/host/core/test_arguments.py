"""What an order may name: a table of flags, and paths inside the roots that the agent was started with."""

from __future__ import annotations

import pytest

from adamctl.cli.role import common_parameters, find_role
from adamctl.roles.host.core.arguments import ARGUMENTS_MAX, FLAGS, FOLDER_FLAG, Roots, refusal

ROOTS = Roots(data=("/data/sets", "https://data.example/sets"), checkpoints=("/runs",))


def refused(role: str, *arguments: str, needs: tuple[tuple[str, ...], ...] = ()) -> str:
    return refusal(role, "node-1", arguments, needs, False, ROOTS)


def test_every_flag_of_the_table_is_one_that_the_role_has() -> None:
    common = {name for parameter in common_parameters() for name in parameter.opts}
    for role, flags in FLAGS.items():
        own = {f"--{option.name}" for option in find_role(role).options}
        assert flags.keys() <= own | common, role
        assert role not in FOLDER_FLAG or FOLDER_FLAG[role] in own


@pytest.mark.parametrize(
    ("role", "arguments"),
    [
        ("worker", ("--controller", "tcp://10.0.0.1:7070", "--threads", "4", "--once")),
        ("worker", ("--controller", "unix:///tmp/x.s")),
        ("controller", ("--peers", "a=10.0.0.1:1,b=[::1]:2,c=host:3", "--port", "7070")),
        ("ps", ("--apply-threads", "auto", "--loss-window-s", "0.5", "--checkpoint-root", "/runs/a/001")),
        ("data", ("--data-root", "/data/sets", "--data-root", "https://data.example/sets/a.tar", "--ahead", "8")),
    ],
)
def test_what_a_run_needs_is_allowed(role: str, arguments: tuple[str, ...]) -> None:
    allowed = "unix" not in " ".join(arguments)
    assert (refused(role, *arguments) == "") is allowed


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/data",
        "/data/setsandmore",
        "/data/sets/../../etc",
        "data/sets",
        "",
        "/data/sets\0",
        "~/x",
        "https://data.example/sets/../secret",
        "https://data.example/setsandmore",
        "https://data.example.evil/sets/a",
        "http://data.example/sets/a",
        "file:///etc",
    ],
)
def test_no_path_outside_the_roots(path: str) -> None:
    assert "lies in none of this agent's roots" in refused("data", "--data-root", path)
    assert "lies in none of this agent's roots" in refused("data", needs=((path,),))


def test_the_roots_of_data_are_not_those_of_checkpoints() -> None:
    assert refused("data", "--data-root", "/runs") != ""
    assert refused("ps", "--checkpoint-root", "/data/sets") != ""
    assert "start the agent with --checkpoint-root" in refused("worker", "--checkpoint-root", "/elsewhere")


@pytest.mark.parametrize(
    "flag",
    [
        "--store", "--dir", "--bind", "--advertise", "--listen", "--log-file", "--token", "--lifeline-fd", "-h",
        "--tls-dir", "--insecure",
    ],
)  # fmt: skip
@pytest.mark.parametrize("role", list(FLAGS))
def test_what_the_agent_decides_itself_cannot_be_ordered(role: str, flag: str) -> None:
    assert f"found {flag!r}" in refused(role, flag, "x")


def test_values_are_bounded_and_cannot_be_flags_or_commands() -> None:
    assert "expected a number" in refused("worker", "--threads", "-1")
    assert "expected a word" in refused("worker", "--job", "a b")
    assert "expected a word" in refused("worker", "--job", "x" * 129)
    assert "expected a value" in refused("worker", "--threads")
    assert "at most" in refused("worker", *["--once"] * (ARGUMENTS_MAX + 1))
    assert "at most" in refused("worker", "--job", "x" * 5000)
    assert "at most" in refused("data", needs=(("/data/sets",),) * 65)
    assert refused("worker", "--threads", "\u0661") != "", "digits of other scripts"
