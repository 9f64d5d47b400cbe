"""Certificates that the holders of one token make for each other, and what those without it are told."""

from __future__ import annotations

import importlib.util
import stat
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, HandshakeError
from adamctl.net.handshake import make_hello
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.authority import describe
from adamctl.net.tls.by_token import token_authority, token_credentials
from adamctl.net.tls.credentials import Credentials
from adamctl.net.transport import Request
from tests.net.tls.certificates import Authority

TOKEN = "the run's token"
FRONT = make_hello("front", "front-coordinator")
AGENT = make_hello("host", "host-1")
DAY_S = 86400.0


@asynccontextmanager
async def front(credentials: Credentials) -> AsyncIterator[StreamServer]:
    def handle(request: Request) -> None:
        raise AssertionError("nobody asks")

    server = await StreamTransport(tls=credentials).serve(["tcp://127.0.0.1:0"], FRONT, handle)
    try:
        yield server
    finally:
        await server.close()


def trusting(folder: Path, authority: bytes) -> Path:
    """Returns a certificate of a stranger who trusts this authority too, so that the other end has to refuse it."""
    stranger = Authority(folder, "hosts")
    return stranger.write("host", "host-1", trusts=authority + stranger.pair.certificate)


def test_the_same_token_makes_the_same_key_and_another_one_another() -> None:
    here, there, others = token_authority(TOKEN), token_authority(TOKEN), token_authority(f"{TOKEN}.")
    assert here.key == there.key != others.key
    assert here.certificate != there.certificate, "only the key is the same"


def test_the_files_are_private_and_outlive_every_run(tmp_path: Path) -> None:
    found = token_credentials(TOKEN, "host", "host-1", tmp_path / "own").current
    assert str(found.identity) == "adam://hosts/host/host-1"
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "own").iterdir()} == {0o600}
    assert {path.name for path in (tmp_path / "own").iterdir()} == {"ca.crt", "node.crt", "node.key"}
    now_s = time.time()
    assert found.lifetime.not_before_s < now_s - DAY_S + 60, "the clock of another host may be behind"
    assert found.lifetime.not_after_s > now_s + 3000 * DAY_S
    assert describe((tmp_path / "own" / "ca.crt").read_bytes())[0].uri == "adam://hosts"


def test_what_follows_a_point_is_a_part_of_the_node(tmp_path: Path) -> None:
    assert token_credentials(TOKEN, "host", "rack.node-7", tmp_path).current.identity.node == "rack"
    with pytest.raises(ConfigurationError, match="expected a node"):
        token_credentials(TOKEN, "host", ".", tmp_path)


def test_without_a_token_or_the_package_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"expected the run's token.*--token-file FILE"):
        token_authority("")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[tls\]'; or.*--insecure"):
        token_authority(TOKEN)


async def test_a_front_and_an_agent_with_one_token_know_each_other(tmp_path: Path) -> None:
    async with front(token_credentials(TOKEN, "operator", "front", tmp_path / "front")) as server:
        agent = StreamTransport(tls=token_credentials(TOKEN, "host", "host-1", tmp_path / "host-1"))
        connection = await agent.connect(server.addresses[0], AGENT, deadline_s=10)
        assert connection.peer.role == "front" and connection.secured is not None
        assert str(connection.secured.peer) == "adam://hosts/operator/front"
        assert [str(one.secured.peer) for one in server.connections if one.secured] == ["adam://hosts/host/host-1"]
        await connection.close()


async def test_an_agent_of_another_token_or_authority_is_refused(tmp_path: Path) -> None:
    async with front(token_credentials(TOKEN, "operator", "front", tmp_path / "front")) as server:
        own = token_authority(TOKEN).certificate
        for stranger in (
            token_credentials("another", "host", "host-1", tmp_path / "another"),
            Authority(tmp_path / "theirs", "hosts").credentials("host", "host-1"),
            Credentials(trusting(tmp_path / "trusting", own)),
        ):
            with pytest.raises(HandshakeError, match="of another authority"):
                await StreamTransport(tls=stranger).connect(server.addresses[0], AGENT, deadline_s=10)


@pytest.mark.parametrize("hello", [make_hello("host", "host-2"), make_hello("front", "host-1"), make_hello("ps", "h")])
async def test_an_agent_is_the_host_of_its_certificate_and_nobody_else(tmp_path: Path, hello: object) -> None:
    async with front(token_credentials(TOKEN, "operator", "front", tmp_path / "front")) as server:
        agent = StreamTransport(tls=token_credentials(TOKEN, "host", "host-1", tmp_path / "host-1"))
        with pytest.raises(HandshakeError, match="its certificate does not allow"):
            await agent.connect(server.addresses[0], hello, deadline_s=10)  # type: ignore[arg-type]


async def test_whoever_speaks_without_tls_is_told_so(tmp_path: Path) -> None:
    async with front(token_credentials(TOKEN, "operator", "front", tmp_path / "front")) as server:
        plain = make_hello("host", "host-1", token=TOKEN)
        with pytest.raises(HandshakeError, match=r"this front.*speaks only TLS; leave --insecure out.*--tls"):
            await StreamTransport(tls=None).connect(server.addresses[0], plain, deadline_s=10)
