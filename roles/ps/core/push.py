"""A push while it is under way: its parts, their sources, what is still to come of it (pure)."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from adamctl.kernels.numeric.convert import Narrow
from adamctl.kernels.operation import Array
from adamctl.roles.ps.core.exactly_once import Client, ClientKey
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.wire.messages import PushResult, PushSource

Token: TypeAlias = Any
"""Whatever the shell needs to answer a request; the core only hands it back."""


class Place(NamedTuple):
    """Where a push stands: in `step`, from 1, as part number `part` of `parts`."""

    step: int
    part: int
    parts: int


class Push:
    """A push under way. `results` are in the order of its parts; `remaining` of them are still to come.

    `body` is read by apply threads and valid until `remaining` is 0. They note in `finite` which activations, by
    offset, size and type, were found finite. `stored` are the changes that must be durable before it is answered,
    `copies` the states of shards that copies must have, None if there are no copies.
    `place` says of which step it is a part, None of none. `held_bytes` of the body are memory of ours: none of them if
    it is the client's. `holder`: whose they are if they are held for a step, or behind one.
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
    """A source of a push, checked: `problem` says what is wrong with it, as (code, message).

    `row_size` is its tensor's. `arrays`, `address` and `finite` are filled in and read by apply threads; two that do so
    at once compute the same.
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
        position: of its result in the push.
        code, message: why it is refused; code 0 if it is to be applied. An apply thread may set them.
        waiters: other pushes that repeat it and wait for its answer, with their positions.
        superseded: nothing is to be applied for it; never of those that are no parts of steps.
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
        """Nothing of it is looked at any more."""
        self.code, self.message, self.source = code, message, None
