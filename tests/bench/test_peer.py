"""Peers answer line by line; one that cannot run says why and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.peer import FOLDER, PeerProcess
from adamctl.errors import ConfigurationError, RunFailedError
from tests.bench.peers_for_tests import interpreter

ECHO = "import sys\nfor line in sys.stdin:\n    print(line.strip(), flush=True)\n"


def test_requests_are_answered_in_order(tmp_path: Path) -> None:
    with PeerProcess(interpreter(tmp_path, ECHO), "any.py", 1) as peer:
        peer.send({"number": 1})
        peer.send({"number": 2})
        assert [peer.receive(20), peer.receive(20)] == [{"number": 1}, {"number": 2}]


def test_a_peer_that_ends_says_why(tmp_path: Path) -> None:
    program = "raise ModuleNotFoundError(\"No module named 'torch'\")"
    why = pytest.raises(ConfigurationError, match=r"No module named 'torch'.*--peer-python")
    with PeerProcess(interpreter(tmp_path, program), "any.py", 1) as peer, why:
        peer.ask({}, 20)


def test_a_peer_that_is_silent_is_not_waited_for(tmp_path: Path) -> None:
    silent, why = "import sys; sys.stdin.read()", pytest.raises(RunFailedError, match="did not answer")
    with PeerProcess(interpreter(tmp_path, silent), "any.py", 1) as peer, why:
        peer.ask({}, 0.2)


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--peer-python"):
        PeerProcess(str(tmp_path / "nothing"), "any.py", 1)


def test_the_programs_are_installed() -> None:
    assert (FOLDER / "torch_program.py").is_file()
