"""A message of a version before or after ours is read: fields that it lacks, and fields that we do not know."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from adamctl.errors import RemoteError
from adamctl.net.handshake import ClientHandshake, ServerHandshake, make_hello
from adamctl.wire import messages
from adamctl.wire.constants import VERSION_HIGHEST, ErrorCode
from adamctl.wire.messages import Hello, Message
from tests.wire.any_message import any_message, encodable

KINDS = sorted(
    {kind for kind in vars(messages).values() if isinstance(kind, type) and issubclass(kind, Message)},
    key=lambda kind: kind.__name__,
)
SEEDS = range(5)


def some(kind: type[Any], seed: int) -> Any:
    random = Random(seed)
    while not encodable(found := any_message(kind, random)):
        pass
    return found


def same(one: Any, other: Any) -> bool:
    """Compares as MessagePack, in which NaN equals itself."""
    return msgspec.msgpack.encode(one) == msgspec.msgpack.encode(other)


def appended(kind: type[Any]) -> type[Any]:
    """Returns the struct as a version after ours might have it."""
    new_map = msgspec.field(default_factory=lambda: {"a": [1]})
    fields = [("new_number", int, 7), ("new_values", tuple[int, ...], (1, 2)), ("new_map", dict[str, Any], new_map)]
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), frozen=True, array_like=True, tag=tag(kind))


def without_defaults(kind: type[Any]) -> type[Any]:
    """Returns the struct as the version before all of its appended fields had it."""
    fields = [(field.encode_name, field.type) for field in msgspec.structs.fields(kind) if field.required]
    return msgspec.defstruct(kind.__name__, fields, frozen=True, array_like=True, tag=tag(kind))


def tag(kind: type[Any]) -> Any:
    """Returns what a struct of a union says first; None: it is of no union."""
    return kind.__struct_config__.tag


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fields_that_a_later_version_appended_are_ignored(kind: type[Any]) -> None:
    later = appended(kind)
    for seed in SEEDS:
        message = some(kind, seed)
        sent = later(**{name: getattr(message, name) for name in message.__struct_fields__})
        encoded = msgspec.msgpack.encode(sent)
        told = len(message.__struct_fields__) + (tag(kind) is not None)
        assert len(msgspec.msgpack.decode(encoded)) == told + 3
        assert same(msgspec.msgpack.decode(encoded, type=kind), message)
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=later)
        assert (back.new_number, back.new_values, back.new_map) == (7, (1, 2), {"a": [1]}), "it has its defaults"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_fields_that_an_earlier_version_lacks_have_their_defaults(kind: type[Any]) -> None:
    earlier = without_defaults(kind)
    for seed in SEEDS:
        message = some(kind, seed)
        required = {name: getattr(message, name) for name in earlier.__struct_fields__}
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(earlier(**required)), type=kind)
        assert same(read, kind(**required))
        back = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=earlier)
        assert same([getattr(back, name) for name in required], list(required.values())), "it ignores what follows"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_field_without_a_default_follows_one_that_has_one(kind: type[Any]) -> None:
    required = [field.required for field in msgspec.structs.fields(kind)]
    assert required == sorted(required, reverse=True)


def speaking(lowest: int, highest: int, role: str) -> Hello:
    return msgspec.structs.replace(make_hello(role, f"{role}-1"), version_lowest=lowest, version_highest=highest)


@pytest.mark.parametrize(
    ("client", "server", "version"),
    [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2), ((1, 2), (3, 4), None),
     ((3, 4), (1, 2), None)],
)  # fmt: skip
def test_the_highest_common_version_is_spoken_by_neighbours(
    client: tuple[int, int], server: tuple[int, int], version: int | None
) -> None:
    ours = ClientHandshake(speaking(*client, "worker"), b"", trusted=True)
    theirs = ServerHandshake(speaking(*server, "ps"), b"", trusted=True)
    if version is None:
        with pytest.raises(RemoteError, match="update the older side") as refused:
            theirs.greeted(ours.hello, 1)
        assert refused.value.code == ErrorCode.UNSUPPORTED_VERSION
        return
    reply = theirs.greeted(ours.hello, 1)
    assert reply.version == version
    assert ours.replied(reply, "tcp://somewhere") is None


def test_the_next_version_would_speak_with_this_one() -> None:
    """A build speaks its own version and the one before, so that a cluster can be upgraded node by node."""
    next_one = speaking(VERSION_HIGHEST, VERSION_HIGHEST + 1, "ps")
    assert ServerHandshake(next_one, b"", trusted=True).greeted(make_hello("worker", "w"), 1).version == VERSION_HIGHEST
