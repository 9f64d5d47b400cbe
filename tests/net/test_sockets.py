"""What is asked of sockets: on one host TCP is not paced, everywhere else the machine's own choice stays."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from adamctl.net.sockets import UNPACED, set_options

linux = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="only Linux lets a socket choose")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def connected(stack: ExitStack, own: str, peer: str) -> tuple[socket.socket, socket.socket]:
    listener = stack.enter_context(socket.create_server((peer, 0)))
    ours = stack.enter_context(socket.create_connection(listener.getsockname(), 5.0, (own, 0)))
    theirs = stack.enter_context(listener.accept()[0])
    return ours, theirs


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


def other_than_ours(sock: socket.socket) -> bytes:
    """Gives a socket a congestion control that is not the one we choose, if there is any; returns what it has."""
    for name in (b"cubic", b"bbr", b"vegas"):
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name)
            return name
        except OSError:
            continue
    pytest.skip("this machine has no other congestion control")


@linux
def test_both_ends_on_one_host_are_not_paced(stack: ExitStack) -> None:
    ends = connected(stack, "127.0.0.1", "127.0.0.1")
    for end in ends:
        other_than_ours(end)
        set_options(end)
    assert [congestion_control(end) for end in ends] == [UNPACED, UNPACED]
    assert all(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for end in ends)


@linux
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is only one loopback address")
def test_between_two_addresses_the_machines_choice_stays(stack: ExitStack) -> None:
    ours, theirs = connected(stack, "127.0.0.2", "127.0.0.1")
    for end in (ours, theirs):
        chosen = other_than_ours(end)
        set_options(end)
        assert congestion_control(end) == chosen
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@linux
def test_a_choice_that_is_forbidden_is_done_without(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = connected(stack, "127.0.0.1", "127.0.0.1")
    before = congestion_control(ours)
    monkeypatch.setattr("adamctl.net.sockets.UNPACED", b"no-such-one")
    set_options(ours)
    assert congestion_control(ours) == before
    assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_that_has_ended_already_is_no_error() -> None:
    with socket.socket() as never_connected:
        set_options(never_connected)
    set_options(None)
