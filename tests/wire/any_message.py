"""Messages with any values that their fields may hold, for tests that go through all of them."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import msgspec
from msgspec import inspect

from adamctl.wire.messages import Message

EDGES = (
    0,
    1,
    -1,
    2,
    7,
    63,
    64,
    127,
    128,
    255,
    1024,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "ps-0",
    "job",
    "float32",
    "bfloat16",
    "train",
    "../..",
    "/",
    "a\0b",
    "\x1b[2J",
    "é",
    "x" * 200,
    "\u202e",
)


def any_message(kind: type[Any], random: Random) -> Any:
    """Returns a message of a kind, each field of the type that it has."""
    return _any(_type_info(kind), random, 3)


@cache
def _type_info(kind: type[Any]) -> inspect.Type:
    """Looking at a type takes longer than making a value of it."""
    return inspect.type_info(kind)


def any_value(random: Random, depth: int = 3) -> Any:
    """Returns plain values in each other."""
    match random.randrange(7 if depth else 4):
        case 0:
            return random.choice(EDGES)
        case 1:
            return random.choice(TEXTS)
        case 2:
            return random.choice(FLOATS)
        case 3:
            return random.choice((None, True, b"", b"\xc1"))
        case 4 | 5:
            return [any_value(random, depth - 1) for _ in range(random.randrange(5))]
        case _:
            return {random.choice(TEXTS): any_value(random, depth - 1) for _ in range(random.randrange(4))}


def _any(kind: inspect.Type, random: Random, depth: int) -> Any:
    match kind:
        case inspect.BoolType():
            return random.random() < 0.5
        case inspect.IntType():
            edges = EDGES if kind.le is None else (*(one for one in EDGES if 0 <= one < kind.le), kind.le)
            return random.choice(edges) if random.random() < 0.5 else random.randrange(0, 5)
        case inspect.FloatType():
            return random.choice(FLOATS)
        case inspect.StrType():
            return random.choice(TEXTS)
        case inspect.BytesType():
            return random.randbytes(random.randrange(0, 20))
        case inspect.NoneType():
            return None
        case inspect.UnionType():
            return _any(random.choice(kind.types), random, depth)
        case inspect.VarTupleType():
            return tuple(_any(kind.item_type, random, depth - 1) for _ in range(_count(random, depth)))
        case inspect.TupleType():
            return tuple(_any(item, random, depth) for item in kind.item_types)
        case inspect.DictType():
            pairs = range(_count(random, depth))
            return {_any(kind.key_type, random, 0): _any(kind.value_type, random, depth - 1) for _ in pairs}
        case inspect.StructType():
            return kind.cls(**{field.name: _any(field.type, random, depth - 1) for field in kind.fields})
        case inspect.AnyType():
            return random.choice((None, 1, "text", [1, {"a": 2.5}], {"key": "value"}))
    raise AssertionError(f"no value is known for {kind}")


def _count(random: Random, depth: int) -> int:
    return random.randrange(0, 4) if depth > 0 else 0


def mutated(data: bytes, random: Random) -> bytes:
    """Returns bytes with a few of them changed, cut off or put in."""
    found = bytearray(data)
    for _ in range(random.randrange(1, 4)):
        place = random.randrange(len(found) + 1)
        match random.randrange(4):
            case 0 if place < len(found):
                found[place] = random.randrange(256)
            case 1:
                found[place:place] = random.randbytes(random.randrange(1, 9))
            case 2:
                del found[place : place + random.randrange(1, 9)]
            case _ if place < len(found):
                found[place] = random.choice((0x00, 0x7F, 0x80, 0x90, 0xC0, 0xC1, 0xCF, 0xD3, 0xDD, 0xFF))
    return bytes(found)


def encodable(message: Message) -> bool:
    """Says whether a message's integers fit into 64 bits, as those of every other do."""
    try:
        return len(msgspec.msgpack.encode(message)) > 0
    except OverflowError:
        return False
