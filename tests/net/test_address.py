"""Addresses as users write them, and which kind of connection is used: the fastest that both can, or a forced one."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.address import (
    TRANSPORT_VARIABLE,
    Address,
    chosen_kind,
    format_address,
    host_id,
    is_loopback,
    parse_address,
    prefer,
)
from adamctl.net.stream import StreamTransport


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("tcp://127.0.0.1:7070", Address("tcp", "127.0.0.1", 7070)),
        ("head:0", Address("tcp", "head", 0)),
        ("tcp://[::1]:7070", Address("tcp", "::1", 7070)),
        ("unix:///run/adamctl.sock", Address("unix", path="/run/adamctl.sock")),
        ("memory://ps-0", Address("memory", path="ps-0")),
    ],
)
def test_addresses_are_read_and_written(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "7070", "host", "host:", ":7070", "tcp://host:port", "tcp://host:70700", "tcp://::1:7070", "http://host:80",
     "unix://relative", "unix:///", "unix:///" + "x" * 200, "memory://", "tcp://a/b:1", "host:²"],
)  # fmt: skip
def test_others_are_refused_with_what_was_expected_and_found(text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_on_the_same_machine_the_unix_socket_is_preferred_if_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    addresses = ("tcp://127.0.0.1:1", f"unix://{path}")
    assert prefer(addresses, host_id()) == "tcp://127.0.0.1:1"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert prefer(addresses, host_id()) == f"unix://{path}"
        assert prefer(addresses, "another machine") == "tcp://127.0.0.1:1"
    with pytest.raises(ConfigurationError, match="tcp://"):
        prefer((f"unix://{path}",), "another machine")
    assert prefer(("memory://a",), "") == "memory://a"


def test_the_machine_has_one_name() -> None:
    assert host_id() == host_id()
    assert "/" in host_id()


def test_a_loopback_host_is_another_machine_for_everybody() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("10.0.0.1", "head")))


def test_the_environment_forces_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_kind({}) == chosen_kind({TRANSPORT_VARIABLE: ""}) == "auto"
    assert chosen_kind({TRANSPORT_VARIABLE: "shared"}) == "shared"
    with pytest.raises(ConfigurationError, match="expected auto, tcp, unix, shared; found 'udp'"):
        chosen_kind({TRANSPORT_VARIABLE: "udp"})
    monkeypatch.setenv(TRANSPORT_VARIABLE, "tcp")
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
