"""Who is refused over TLS, over real sockets: each text names both ends, the reason and the command that mends it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from adamctl.errors import AdamctlError, HandshakeError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.server import StreamServer
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import Credentials, Loaded
from adamctl.net.tls.identity import Identity
from adamctl.net.tls.refusals import Ends, failure
from adamctl.net.transport import Request
from adamctl.wire.messages import BenchBlockRequest, Empty
from tests.net.tls.certificates import Authority

PS, WORKER = "adam://nord/ps/ps-0", "adam://nord/worker/w-1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(
    tls: Credentials | None, role: str = "ps", node: str = "ps-0", token: str = ""
) -> AsyncIterator[StreamServer]:
    def answer(request: Request) -> None:
        request.reply(Empty())

    hello = make_hello(role, node, 1, token)
    server = await StreamTransport(tls=tls).serve(["tcp://127.0.0.1:0"], hello, answer)
    yield server
    await server.close()


async def refused(
    server: StreamServer, tls: Credentials | Loaded | None, role: str = "worker", node: str = "w-1",
    expects: tuple[str, str] = ("", ""),
) -> AdamctlError:  # fmt: skip
    """Returns the error that connecting ends with."""
    transport = StreamTransport(tls=_Fixed(tls) if isinstance(tls, Loaded) else tls)
    with pytest.raises(AdamctlError) as caught:
        await transport.connect(server.addresses[0], make_hello(role, node, 1), deadline_s=10, expects=expects)
    return caught.value


class _Fixed(Credentials):
    """A certificate that its own process would not use."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded, self.clock = loaded, lambda: 0.0

    @property
    def current(self) -> Loaded:
        return self._loaded


def unchecked(folder: Path, good: Loaded, identity: str) -> Loaded:
    """Returns a state with the certificate in a folder that `Credentials` would refuse."""
    contexts = []
    for side in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(side)
        context.check_hostname, context.verify_mode = False, ssl.CERT_REQUIRED
        context.load_cert_chain(folder / "node.crt", folder / "node.key")
        context.load_verify_locations(folder / "ca.crt")
        contexts.append(context)
    parts = identity.removeprefix("adam://").split("/")
    return Loaded(Identity(*parts), good.lifetime, *contexts, good.authorities, str(folder))


async def test_who_has_a_certificate_is_let_in_and_known_by_it(authority: Authority) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> None:
        seen.append(request)
        request.reply(Empty())

    transport = StreamTransport(tls=authority.credentials("ps", "ps-0"))
    server = await transport.serve(["tcp://127.0.0.1:0"], make_hello("ps", "ps-0", 1), answer)
    worker = StreamTransport(tls=authority.credentials("worker", "w-1"))
    connection = await worker.connect(
        server.addresses[0], make_hello("worker", "w-1.part-2", 1), deadline_s=10, expects=("ps", "ps-0")
    )
    await connection.request(BenchBlockRequest(1), deadline_s=10)
    assert seen[0].secured is not None and str(seen[0].secured.peer) == WORKER and seen[0].peer.node == "w-1.part-2"
    assert connection.secured is not None and str(connection.secured.peer) == PS
    await connection.close()
    await server.close()


async def test_a_front_is_named_after_its_operator(authority: Authority) -> None:
    async with serving(authority.credentials("ps", "ps-0")) as server:
        transport = StreamTransport(tls=authority.credentials("operator", "anna"))
        connection = await transport.connect(server.addresses[0], make_hello("front", "front-7"), deadline_s=10)
        assert [protocol.peer.node for protocol in server.connections] == ["anna.front-7"]
        await connection.close()


async def test_a_certificate_takes_the_place_of_the_token(authority: Authority) -> None:
    """Only one side has a token: it counts where there is no TLS."""
    async with serving(authority.credentials("ps", "ps-0"), token="the cluster's") as server:
        transport = StreamTransport(tls=authority.credentials("worker", "w-1"))
        connection = await transport.connect(server.addresses[0], make_hello("worker", "w-1"), deadline_s=10)
        await connection.close()


async def test_another_authority(authority: Authority, tmp_path: Path) -> None:
    """Each end by itself refuses a certificate that the other's authority has issued."""
    other = Authority(tmp_path / "other")
    async with serving(authority.credentials("ps", "ps-0")) as server:
        error = await refused(server, other.credentials("worker", "w-1"))
        assert isinstance(error, HandshakeError)
        for part in (WORKER, server.addresses[0], "of another authority", "adamctl tls check"):
            assert part in str(error)
        trusting = other.write("worker", "w-1", trusts=authority.pair.certificate + other.pair.certificate)
        error = await refused(server, Credentials(trusting))
        assert isinstance(error, HandshakeError)
        for part in (PS, WORKER, "refuses", "of another authority", "adamctl tls check", str(trusting)):
            assert part in str(error)


async def test_another_cluster_of_the_same_authority(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Both clusters' authorities are trusted by mistake; each end still refuses the other cluster."""
    sued = Authority(tmp_path / "sued", "sued")
    both = authority.pair.certificate + sued.pair.certificate
    async with serving(Credentials(authority.write("ps", "ps-0", trusts=both))) as server:
        error = await refused(server, Credentials(sued.write("worker", "w-1", trusts=both)))
        assert isinstance(error, HandshakeError)
        for part in (PS, "adam://sued/worker/w-1", "different clusters", "adamctl tls create worker w-1"):
            assert part in str(error)


async def test_a_server_refuses_another_cluster_even_if_the_client_does_not(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sued = Authority(tmp_path / "sued", "sued")
    both = authority.pair.certificate + sued.pair.certificate
    monkeypatch.setattr("adamctl.net.tls.layer.other_cluster", lambda *_: "")
    async with serving(Credentials(authority.write("ps", "ps-0", trusts=both))) as server:
        error = await refused(server, Credentials(sued.write("worker", "w-1", trusts=both)))
        assert "different clusters" in str(error) and "refused the connection" in str(error)


async def test_another_role_than_the_certificates(authority: Authority) -> None:
    async with serving(authority.credentials("ps", "ps-0")) as server:
        for role in ("ps", "controller", "coordinator", "front", "operator", "client", "data", "surveyor"):
            transport = authority.credentials("worker", "w-1")
            error = await refused(server, transport, role, "w-1")
            assert isinstance(error, HandshakeError)
            for part in (PS, WORKER, "its certificate does not allow", "adamctl tls create"):
                assert part in str(error)
        assert server.connection_count == 0


async def test_another_node_than_the_certificates(authority: Authority) -> None:
    async with serving(authority.credentials("ps", "ps-0")) as server:
        error = await refused(server, authority.credentials("worker", "w-1"), "worker", "w-2")
        for part in (PS, WORKER, "worker w-2", "adamctl tls create worker w-2"):
            assert part in str(error)


async def test_a_server_that_says_more_than_its_certificate(authority: Authority) -> None:
    """A worker's certificate makes no controller, and no parameter server of another name."""
    for role, node in (("controller", "w-1"), ("ps", "ps-0")):
        async with serving(authority.credentials("worker", "w-1"), role, node) as server:
            error = await refused(server, authority.credentials("ps", "ps-7"), "ps", "ps-7")
            assert isinstance(error, HandshakeError)
            for part in (
                "adam://nord/ps/ps-7",
                WORKER,
                f"that it is {role} {node}",
                f"adamctl tls create {role} {node}",
            ):
                assert part in str(error)


async def test_another_process_than_the_record_names(authority: Authority) -> None:
    async with serving(authority.credentials("ps", "ps-0")) as server:
        for expects in (("ps", "ps-1"), ("controller", ""), ("worker", "ps-0")):
            error = await refused(server, authority.credentials("worker", "w-1"), expects=expects)
            assert isinstance(error, UnreachableError)  # the record may be read again
            for part in (PS, WORKER, " ".join(filter(None, expects)), "adamctl tls create"):
                assert part in str(error)


@pytest.mark.parametrize(
    ("begin_s", "lifetime_s", "here", "there"),
    [
        (-7200.0, 3600.0, "its certificate has expired", "the certificate of this process has expired"),
        (3600.0, 3600.0, "its certificate is not yet valid", "not valid there, or not yet"),
    ],
)
async def test_a_certificate_out_of_its_time(
    authority: Authority, begin_s: float, lifetime_s: float, here: str, there: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    good = authority.credentials("ps", "ps-0")
    folder = authority.write("worker", "w-1", begin_s=begin_s, lifetime_s=lifetime_s)
    bad = unchecked(folder, good.current, WORKER)
    caplog.set_level(logging.WARNING)
    async with serving(good) as server:
        error = await refused(server, bad)
        assert isinstance(error, UnreachableError)  # it may be renewed meanwhile
        for part in (PS, WORKER, there, "adamctl tls", str(folder)):
            assert part in str(error)
        assert here in caplog.text and PS in caplog.text and "127.0.0.1" in caplog.text
    async with serving(_Fixed(bad), "worker", "w-1") as server:
        error = await refused(server, good, "ps", "ps-0")
        assert PS in str(error) and here in str(error) and server.addresses[0] in str(error)


async def test_no_certificate_at_all(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    good = authority.credentials("ps", "ps-0").current
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(f"{good.folder}/ca.crt")
    bare = Loaded(Identity("nord", "worker", "w-1"), good.lifetime, context, context, good.authorities, "nowhere")
    async with serving(_Fixed(good)) as server:
        error = await refused(server, bare)
    assert isinstance(error, HandshakeError)
    for part in (PS, WORKER, "it requires a certificate", "--tls-dir DIR or set ADAMCTL_TLS"):
        assert part in str(error)
    assert "it has no certificate" in caplog.text


async def test_frames_without_tls_get_one_clear_error(authority: Authority) -> None:
    async with serving(authority.credentials("ps", "ps-0")) as server:
        error = await refused(server, None)
        assert isinstance(error, HandshakeError)
        for part in (PS, "speaks only TLS", "--tls-dir DIR", "ADAMCTL_TLS", "cluster nord"):
            assert part in str(error)


async def test_tls_at_a_port_without_gets_one_clear_error(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(None) as server:
        error = await refused(server, authority.credentials("worker", "w-1"))
        assert isinstance(error, HandshakeError)
        for part in (WORKER, server.addresses[0], "without TLS", "--tls-dir DIR"):
            assert part in str(error)
    assert "found the start of TLS" in caplog.text


async def test_an_older_tls_is_refused(authority: Authority) -> None:
    loaded = authority.credentials("worker", "w-1").current
    loaded.client.minimum_version = ssl.TLSVersion.TLSv1_2
    loaded.client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(authority.credentials("ps", "ps-0")) as server:
        error = await refused(server, loaded)
        assert isinstance(error, HandshakeError) and "expected TLS 1.3" in str(error)


async def test_a_line_that_is_cut_in_the_handshake(authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        transport = StreamTransport(tls=authority.credentials("worker", "w-1"))
        task = asyncio.ensure_future(
            transport.connect(
                f"tcp://127.0.0.1:{listener.getsockname()[1]}", make_hello("worker", "w-1"), deadline_s=10
            )
        )
        accepted, _ = await asyncio.to_thread(listener.accept)
        accepted.close()
        with pytest.raises(UnreachableError):
            await task


def test_bytes_that_were_changed_can_be_sent_again() -> None:
    ends = Ends(Identity("c", "ps", "a"), Identity("c", "worker", "b"), "tcp://h:1", "/tls")
    error = ssl.SSLError(1, "[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC] decryption failed")
    error.reason = "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"
    found = failure(error, ends)
    assert isinstance(found, UnreachableError) and "changed on the way" in str(found)
    assert "adam://c/ps/a" in str(found) and "adam://c/worker/b" in str(found)
