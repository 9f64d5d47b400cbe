"""What goes between a command that predicts and the processes that hold the partitions of its model.

They are parent and child on one machine, of one version, over a pair of sockets that nobody else has. Examples and
outputs lie in memory that all of them map; messages say only that they are there.
"""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import TypeAlias

import msgspec


class Begin(msgspec.Struct, frozen=True, tag=True):
    """To a new process: what it is.

    Attributes:
        checkpoint: the folder that it reads its parameters from.
        plan_hash: of the plan that it must find, too.
        own: its partition.
        batch: most examples of a flight.
        flights: that may be open.
        threads: that compute.
        spins: see `adamctl.roles.worker.partition.threads.SPINS`.
        memory, memory_bytes: descriptor and size of what all processes share.
        sleepers: descriptor on which this process's threads are woken.
        wakers: descriptors that wake those of each partition.
    """

    checkpoint: str
    plan_hash: str
    partitions: int
    own: int
    batch: int
    flights: int
    threads: int
    spins: int
    memory: int
    memory_bytes: int
    sleepers: int
    wakers: tuple[int, ...]


class Predict(msgspec.Struct, frozen=True, tag=True):
    """To a process: the examples of a flight are in its place."""

    flight: int
    examples: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a process: it has its parameters, and everything is compiled.

    Attributes:
        parameters_bytes: that it holds.
    """

    parameters_bytes: int


class Done(msgspec.Struct, frozen=True, tag=True):
    """From a process: its outputs of a flight are in their place.

    Attributes:
        compute_s: that its threads worked on it, together.
    """

    flight: int
    compute_s: float


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a process: why it ends. `kind`: the class of `adamctl.errors`; empty: it is a bug."""

    kind: str
    text: str


ToMember: TypeAlias = Begin | Predict
FromMember: TypeAlias = Ready | Done | Failed

_TO_MEMBER: msgspec.msgpack.Decoder[ToMember] = msgspec.msgpack.Decoder(ToMember)
_FROM_MEMBER: msgspec.msgpack.Decoder[FromMember] = msgspec.msgpack.Decoder(FromMember)


def send(connection: Connection, message: ToMember | FromMember) -> None:
    """Sends a message. Raises OSError if the other side is gone."""
    connection.send_bytes(msgspec.msgpack.encode(message))


def receive_as_member(connection: Connection) -> ToMember:
    """Returns the next message to a member. Raises EOFError or OSError if the command is gone."""
    return _TO_MEMBER.decode(connection.recv_bytes())


def receive_from_member(connection: Connection) -> FromMember:
    """Returns the next message from a member. Raises EOFError or OSError if it is gone."""
    return _FROM_MEMBER.decode(connection.recv_bytes())
