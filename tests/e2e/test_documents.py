"""What our documents tell users to type is typed, block by block, where it is marked as run."""

from __future__ import annotations

import shutil

import pytest

from tests.documents import DOCUMENTS, commands_in, run_blocks
from tests.e2e.conftest import EXAMPLES, Runner
from tests.ports import free_ports

LONG = {"fetch", "pytest", "bench"}
"""Words of commands that download, or take more than some seconds."""
DEFAULT = "127.0.0.1:7070"
COMMAND_S = 120.0


def commands_of(document: str) -> list[list[str]]:
    return [words for line in run_blocks(document) for words in commands_in(line)]


MARKED = [document for document in DOCUMENTS if run_blocks(document)]


@pytest.mark.parametrize("document", MARKED)
def test_marked_commands_are_ours_and_short(document: str) -> None:
    assert len(commands_of(document)) == len(run_blocks(document)), "one command of ours on each line"
    for words in commands_of(document):
        assert not LONG & set(words), words


@pytest.mark.parametrize("document", MARKED)
def test_what_is_marked_as_run_runs(document: str, adamctl: Runner) -> None:
    """In terminals of their own where they go on, else one after the other, in a folder with our examples.

    Port 7070 may be taken where tests run. So the controller is told another, and where the others find it.
    """
    shutil.copytree(EXAMPLES, adamctl.folder / "examples")
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    environment = {"ADAMCTL_CONTROLLER": address, "ADAMCTL_STATE": str(adamctl.folder / "state")}
    for given in commands_of(document):
        words = [word.replace(DEFAULT, address) for word in given]
        if words[:2] == ["controller", "start"]:
            words += ["--port", str(port), "--dir", str(adamctl.folder / "controller")]
        command = adamctl.start(*words, **environment)
        if words[1:2] != ["start"] or words[0] == "coordinator":
            code, _, stderr = command.wait(COMMAND_S)
            assert code == 0, f"{document}: adamctl {' '.join(words)}: exit code {code}\n{stderr}"


def test_by_hand_is_run_from_its_first_terminal_to_its_last() -> None:
    started = [words[0] for words in commands_of("examples/by_hand.md") if "start" in words]
    assert started == ["controller", "ps", "ps", "data", "worker", "worker", "coordinator", "worker", "coordinator"]
