"""Who is let in and who is told why not; on every transport."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError, HandshakeError, RemoteError, UnreachableError
from adamctl.net.handshake import make_hello
from adamctl.net.transport import Request
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    BenchBlockRequest,
    Empty,
    Hello,
    PullRequest,
    PushRequest,
    StatusRequest,
)
from tests.net.world import World, everywhere, until

PULL = PullRequest("job", {}, (1,))
PUSH = PushRequest("job", {}, 0.1, 1, 1, (), ())


@everywhere("tcp", "tcp-uvloop", "memory")
async def test_a_wrong_token_is_refused_with_a_reason(world: World) -> None:
    server = await world.serve(token="right")
    with pytest.raises(HandshakeError, match="token"):
        await world.connect(server, hello=make_hello("worker", "w", token="wrong"))
    with pytest.raises(HandshakeError, match="token"):
        await world.connect(server)
    await (await world.connect(server, hello=make_hello("worker", "w", token="right"))).request(
        BenchBlockRequest(1), deadline_s=10
    )


@everywhere()
async def test_an_unknown_version_is_refused_with_a_reason(world: World) -> None:
    server = await world.serve()
    with pytest.raises(HandshakeError, match=r"versions 1 to 1.*7 to 9"):
        await world.connect(server, hello=Hello(7, 9, (), "worker", "w", 0))
    newer = await world.connect(server, hello=Hello(1, 9, ("tomorrow",), "worker", "w", 0))
    assert newer.peer.version == 1
    assert newer.peer.features == ()


@everywhere()
async def test_one_connection_too_many_is_refused(world: World) -> None:
    server, first = await world.pair(connections_max=1)
    with pytest.raises(UnreachableError, match="try again"):
        await world.connect(server)
    await first.close()
    await until(lambda: server.connection_count == 0)
    await world.connect(server)


@everywhere()
async def test_nobody_there_is_unreachable(world: World) -> None:
    server = await world.serve()
    await server.close()
    with pytest.raises(UnreachableError, match="is it up"):
        await world.connect(server)


@everywhere()
async def test_an_address_taken_is_a_configuration_error(world: World) -> None:
    server = await world.serve()
    with pytest.raises(ConfigurationError, match="choose another"):
        await world.transport.serve([server.addresses[0]], make_hello("ps", "other"), lambda _: None)


@everywhere()
async def test_names_that_no_role_has_are_refused(world: World) -> None:
    server = await world.serve(lambda request: request.reply(Empty()))
    for role, node in (("ps\x1b[2J", "w"), ("worker", "a b"), ("", "w")):
        with pytest.raises(HandshakeError, match="letters, digits") as caught:
            await world.connect(server, hello=make_hello(role, node))
        assert str(caught.value).isprintable()


@everywhere()
async def test_what_a_server_says_is_text(world: World) -> None:
    def refuse(request: Request) -> None:
        raise RemoteError(ErrorCode.INTERNAL, "no\x1b[2J\nERROR all is lost")

    connection = await world.connect(await world.serve(refuse))
    with pytest.raises(RemoteError) as caught:
        await connection.request(StatusRequest(), deadline_s=10)
    assert str(caught.value) == "no\\x1b[2J\\nERROR all is lost"
