"""A push in progress: its parts, their sources, and its results so far (pure)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, TypeAlias

from adamctl.kernels.numeric.convert import Narrow
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import Client, ClientKey
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.wire.messages import PushResult, PushSource

Token: TypeAlias = Any
"""What the shell needs to answer a request; the core only passes it back."""


class Awaiting(Protocol):
    """What is answered only when changes of shards are durable or in copies.

    Attributes:
        stored: the changes that must be durable.
        copies: the shard states that copies must have; None if there are no copies.
    """

    stored: list[tuple[Entry, int]]
    copies: list[tuple[ShardReplicas, int]] | None


class Place(NamedTuple):
    """A push's place in a step: part number `part` of `parts`, in step `step`, from 1."""

    step: int
    part: int
    parts: int


class Push:
    """A push in progress.

    Attributes:
        results, remaining: results in the order of its parts, and how many are still missing.
        body: read by apply threads; valid until `remaining` is 0.
        finite: (offset, size, type) of activations -> whether they are finite; filled in by apply threads.
        stored: the changes that must be durable before it is answered.
        copies: the shard states that copies must have before it is answered; None if there are no copies.
        place: its place in a step; None if it is not part of a step.
        held_bytes: bytes of the body in this server's memory; 0 if the body is in the client's shared memory.
        holder: the client charged for those bytes if the push is held for a step, or waits behind a held part.
    """

    __slots__ = (
        "body",
        "body_bytes",
        "copies",
        "finite",
        "held_bytes",
        "holder",
        "learning_rate",
        "place",
        "queued",
        "remaining",
        "results",
        "routing",
        "stored",
        "token",
    )

    def __init__(self, token: Token, learning_rate: float, body: memoryview, parts: int) -> None:
        self.token = token
        self.learning_rate = learning_rate
        self.body = body
        self.body_bytes = len(body)
        self.held_bytes = len(body)
        self.finite: dict[tuple[int, int, str], bool] = {}
        self.results: list[PushResult | None] = [None] * parts
        self.remaining = parts
        self.routing: dict[int, int] = {}
        self.stored: list[tuple[Entry, int]] = []
        self.copies: list[tuple[ShardReplicas, int]] | None = None
        self.queued = False
        self.place: Place | None = None
        self.holder: ClientKey | None = None

    def settle(self, position: int, result: PushResult) -> None:
        self.results[position] = result
        self.remaining -= 1


class Source:
    """A checked source of a push: `problem` is what is wrong with it, as (code, message), or None.

    `row_size` is its tensor's. `arrays`, `address` and `finite` are filled in and read by apply threads; threads that
    do so concurrently compute the same values.
    """

    __slots__ = ("address", "arrays", "finite", "header", "problem", "push", "row_size")

    def __init__(self, push: Push, header: PushSource, problem: tuple[int, str] | None, row_size: int) -> None:
        self.push = push
        self.row_size = row_size
        self.header = header
        self.problem = problem
        self.arrays: tuple[Array | Narrow, ...] | None = None
        self.address: int | None = None
        self.finite: bool | None = None


class Update:
    """One accepted part of a push, in its shard's queue.

    Attributes:
        position: index of its result in the push.
        code, message: why it is refused; code 0 if it is to be applied. An apply thread may set them.
        waiters: other pushes that repeat it and wait for its result, with their positions.
        superseded: it must not be applied; only parts of steps can be superseded.
    """

    __slots__ = (
        "base_pushes",
        "base_sequence",
        "client",
        "code",
        "message",
        "position",
        "push",
        "sequence",
        "source",
        "waiters",
    )
    superseded = False

    def __init__(
        self, push: Push, position: int, source: Source | None, client: Client, sequence: int, base: tuple[int, int]
    ) -> None:
        self.push, self.position, self.source = push, position, source
        self.client, self.sequence = client, sequence
        self.base_pushes, self.base_sequence = base
        self.code = 0
        self.message = ""
        self.waiters: list[tuple[Push, int]] | None = None

    def refuse(self, code: int, message: str) -> None:
        """Refuses the update; its source is not read any more."""
        self.code, self.message, self.source = code, message, None
