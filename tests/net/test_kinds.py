"""Which kind of connection is used: the fastest that both can, or the one that is forced."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.address import host_id, prefer
from adamctl.net.kinds import VARIABLE, chosen_kind
from adamctl.net.stream import StreamTransport


def test_the_environment_forces_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_kind({}) == chosen_kind({VARIABLE: ""}) == "auto"
    assert chosen_kind({VARIABLE: "shared"}) == "shared"
    with pytest.raises(ConfigurationError, match="expected auto, tcp, unix, shared; found 'udp'"):
        chosen_kind({VARIABLE: "udp"})
    monkeypatch.setenv(VARIABLE, "tcp")
    assert StreamTransport().kind == "tcp"
    assert StreamTransport(kind="unix").kind == "unix"


def test_only_addresses_of_a_forced_kind_are_used(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        unix, tcp = f"unix://{tmp_path}/s", "tcp://127.0.0.1:7070"
        both = (tcp, unix)
        assert prefer(both, host_id()) == prefer(both, host_id(), "unix") == prefer(both, host_id(), "shared") == unix
        assert prefer(both, host_id(), "tcp") == prefer(both, "another machine") == tcp
        with pytest.raises(ConfigurationError, match="by unix"):
            prefer(both, "another machine", "unix")
        with pytest.raises(ConfigurationError, match="by tcp"):
            prefer((unix,), host_id(), "tcp")
