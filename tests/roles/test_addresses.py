"""Separate addresses for clients, administration and replication (Adam 3.3.4), from the flags to the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.config.records import AddressKind, NodeRecord
from adamctl.errors import ConfigurationError, RemoteError
from adamctl.roles.addresses import KINDS, BoundAddresses, Place, kind_of, places
from adamctl.roles.configuration import nodes
from adamctl.roles.context import RoleContext
from adamctl.roles.process import CommonOptions
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    AttachRequest,
    CheckpointRequest,
    PullReply,
    PullRequest,
    PushRequest,
    ShutdownRequest,
    StatusReply,
    StatusRequest,
)
from tests.cluster import memory_cluster


def bound(*chosen: Place, **options: Any) -> BoundAddresses:
    addresses = [place.address.replace(":0", f":{7000 + number}") for number, place in enumerate(chosen)]
    return BoundAddresses(chosen, addresses, CommonOptions(**options))


def test_one_address_takes_everything_unless_others_are_named() -> None:
    (place,) = places(["tcp://h:1"])
    assert place.kinds == frozenset(KINDS) and not bound(place).separate
    clients, socket, administration = places(["tcp://h:1", "unix:///s"], ["tcp://h:2"])
    assert clients.kinds == socket.kinds == {"clients", "replication"}
    assert administration.kinds == {"administration"}


def test_an_address_named_twice_is_listened_on_once_and_any_free_port_is_always_another() -> None:
    one, two = places(["tcp://h:1"], ["h:1"], ["h:2"])
    assert one.kinds == {"clients", "administration"} and two.kinds == {"replication"}
    assert len(places(["tcp://h:0"], ["tcp://h:0"], ["tcp://h:0"])) == 3
    with pytest.raises(ConfigurationError, match="ports go from 0 to 65535"):
        places(["tcp://h:1"], ["h:99999"])


def test_what_others_are_told() -> None:
    addresses = bound(*places(["tcp://0.0.0.0:0"], ["tcp://10.0.0.1:0"]), advertise="example.org")
    assert addresses.advertised == {
        "clients": ("tcp://example.org:7000",),
        "administration": ("tcp://10.0.0.1:7001",),
        "replication": (),
    }
    assert addresses.describe() == "tcp://example.org:7000, administration on tcp://10.0.0.1:7001"


@pytest.mark.parametrize(
    ("kind", "expected"), [("clients", ("c",)), ("administration", ("a",)), ("replication", ("c",))]
)
def test_a_record_says_where_to_go(kind: AddressKind, expected: tuple[str, ...]) -> None:
    assert NodeRecord("n", "ps", 1, ("c",), "h", 1, 0, ("a",)).addresses_for(kind) == expected


def test_requests_have_a_kind() -> None:
    administration = (StatusRequest(), ShutdownRequest("x"), CheckpointRequest("job", "folder"))
    clients = (AttachRequest("job", ""), PushRequest("job", {}, 0.1, 1, 1, (), ()), PullRequest("job", {}, ()))
    assert {kind_of(message) for message in administration} == {"administration"}
    assert {kind_of(message) for message in clients} == {"clients"}


async def serving(context: RoleContext) -> None:
    await context.serve(
        lambda request: request.reply(PullReply(())),
        addresses=["memory://work"],
        administration=["memory://office"],
        replication=["memory://copies"],
    )
    await context.stopping.wait()


async def test_requests_at_the_wrong_kind_of_address_are_refused_and_told_where_to_go() -> None:
    async with memory_cluster(seed=1) as cluster:
        context = await cluster.start("ps", "ps-0", serving)
        (record,) = [record for record in await nodes(cluster.client) if record.node == "ps-0"]
        assert record.addresses == ("memory://work",)
        assert record.addresses_for("administration") == ("memory://office",)
        assert record.addresses_for("replication") == ("memory://copies",)
        hellos = [(await cluster.context(role)).hello() for role in ("worker", "front", "worker")]
        work, office, copies = [
            await cluster.network.connect(f"memory://{name}", hello, deadline_s=5)
            for name, hello in zip(("work", "office", "copies"), hellos, strict=True)
        ]
        pull = PullRequest("job", {}, ())
        assert isinstance((await work.request(pull, deadline_s=5)).message, PullReply)
        assert isinstance((await office.request(StatusRequest(), deadline_s=5)).message, StatusReply)
        for connection, message, there in (
            (work, StatusRequest(), "memory://office"),
            (work, ShutdownRequest("x"), "memory://office"),
            (work, CheckpointRequest("job", "folder"), "memory://office"),
            (office, pull, "memory://work"),
            (copies, pull, "memory://work"),
            (copies, StatusRequest(), "memory://office"),
        ):
            with pytest.raises(RemoteError, match=f"which is taken at {there}") as caught:
                await connection.request(message, deadline_s=5)
            assert caught.value.code == ErrorCode.WRONG_ADDRESS
            assert caught.value.details == {"kind": kind_of(message), "addresses": [there]}
        assert not context.stopping.is_set()
        await office.request(ShutdownRequest("enough"), deadline_s=5)
        assert context.stopping.is_set()
        for connection in (work, office, copies):
            await connection.close()
