"""Where servers may listen, and socket files; on one host TCP is not paced, elsewhere the machine's choice stays."""

from __future__ import annotations

import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.sockets import UNPACED, set_options
from adamctl.net.stream import StreamTransport
from adamctl.wire.messages import Empty
from tests.net.tls.certificates import Authority

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


# --- addresses ------------------------------------------------------------------------------------------------------


async def serve(*addresses: str) -> Any:
    return await StreamTransport().serve(addresses, make_hello("ps", "a"), lambda request: request.reply(Empty()))


async def test_a_busy_port_says_so_and_what_to_do() -> None:
    server = await serve("127.0.0.1:0")
    port = server.addresses[0].rpartition(":")[2]
    with pytest.raises(ConfigurationError, match=f"port {port} is taken by another process; stop it or choose another"):
        await serve(server.addresses[0])
    await server.close()


async def test_a_server_listens_on_all_its_addresses_or_none(tmp_path: Path) -> None:
    server = await serve("tcp://127.0.0.1:0", f"unix://{tmp_path}/a.sock")
    for address in server.addresses:
        connection = await StreamTransport().connect(address, make_hello("w", "w"), deadline_s=10)
        await connection.close()
    with pytest.raises(ConfigurationError):
        await serve(f"unix://{tmp_path}/b.sock", server.addresses[0])
    assert not (tmp_path / "b.sock").exists()
    await server.close()


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("tcp://192.0.2.1:7070", "not an address of this machine"),
        ("tcp://no.such.host.invalid:7070", "is unknown"),
        ("memory://x", "outside one process"),
    ],
)
async def test_an_address_that_cannot_be_had_says_why(address: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        transport = StreamTransport(insecure=True)
        await transport.serve([address], make_hello("ps", "a", token="t"), lambda request: None)


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://192.0.2.1:7070"])
async def test_without_tls_and_without_a_token_nobody_listens_beyond_loopback(address: str) -> None:
    for token in ("", "t"):
        with pytest.raises(ConfigurationError, match=r"without TLS.*--tls-dir DIR.*--insecure with a token"):
            await StreamTransport().serve([address], make_hello("ps", "a", token=token), lambda request: None)
    with pytest.raises(ConfigurationError, match=r"without a token.*--token-file FILE or set ADAMCTL_TOKEN"):
        await StreamTransport(insecure=True).serve([address], make_hello("ps", "a"), lambda request: None)


@pytest.mark.parametrize("value", ["1", "0", "", "yes"])
async def test_only_a_trusted_network_does_without_tls(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_INSECURE", value)
    identity = make_hello("ps", "a", token="t")
    if value != "1":
        why = "ADAMCTL_INSECURE: expected 1" if value == "yes" else "without TLS"
        with pytest.raises(ConfigurationError, match=why):
            await StreamTransport().serve(["tcp://0.0.0.0:0"], identity, lambda request: None)
        return
    server = await StreamTransport().serve(["tcp://0.0.0.0:0"], identity, lambda request: None)
    assert server.addresses[0].startswith("tcp://0.0.0.0:")
    await server.close()


async def test_with_a_certificate_one_may_listen_beyond_loopback(tmp_path: Path) -> None:
    transport = StreamTransport(tls=Authority(tmp_path).credentials("ps", "a"))
    server = await transport.serve(["tcp://0.0.0.0:0"], make_hello("ps", "a"), lambda request: None)
    await server.close()


async def test_a_unix_socket_is_for_this_user_alone(tmp_path: Path) -> None:
    server = await serve(f"unix://{tmp_path}/a.sock")
    assert stat.S_IMODE(os.stat(tmp_path / "a.sock").st_mode) == 0o600
    await server.close()
    assert not (tmp_path / "a.sock").exists()


async def test_a_socket_file_left_by_a_killed_process_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/a.sock")
    server = await serve(f"unix://{tmp_path}/a.sock")
    with pytest.raises(ConfigurationError, match="another process listens there"):
        await serve(f"unix://{tmp_path}/a.sock")
    await server.close()


async def test_a_file_of_another_kind_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.sock").write_text("mine")
    with pytest.raises(ConfigurationError, match="not a socket"):
        await serve(f"unix://{tmp_path}/a.sock")
    assert (tmp_path / "a.sock").read_text() == "mine"
    with pytest.raises(ConfigurationError, match="create the folder"):
        await serve(f"unix://{tmp_path}/none/a.sock")


@pytest.mark.parametrize("address", ["unix:///no/such/file.sock", "tcp://127.0.0.1:1"])
async def test_nobody_there_names_the_address(address: str) -> None:
    with pytest.raises(UnreachableError, match=address):
        await StreamTransport().connect(address, make_hello("w", "w"), deadline_s=10)
