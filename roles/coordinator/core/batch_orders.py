"""What a batch run has servers and workers do, and what it knows of each bucket (`batch_run`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from adamctl.kernels.numeric.exact_sums import combined
from adamctl.model.commands import Command, Parts, Reduce
from adamctl.roles.coordinator.core.bundles import Given
from adamctl.roles.coordinator.core.journal import Entry

FRACTION_BITS = (40, 20)
"""Of the accumulator: the second where a gradient is too large for the first."""


@dataclass(frozen=True)
class OpenEvaluation:
    """Have these buckets open an evaluation. This and the next two come back as `BatchRun.answered`, once for each.

    `last_round`: number of the last round sent before, so that a message that comes late is known (0032).
    """

    order: int
    buckets: tuple[int, ...]
    evaluation: int
    at: str
    fraction_bits: int
    bundles: int
    last_round: int


@dataclass(frozen=True)
class CarryOut:
    """Have these buckets carry out a round."""

    order: int
    buckets: tuple[int, ...]
    number: int
    commands: tuple[Command, ...]
    evaluation: int
    after: int


@dataclass(frozen=True)
class CommitVectors:
    """Have these buckets carry out a commit. `last_round`: as in `OpenEvaluation`."""

    order: int
    buckets: tuple[int, ...]
    number: int
    commands: tuple[Command, ...]
    evaluation: int
    anew: bool
    last_round: int


Order: TypeAlias = OpenEvaluation | CarryOut | CommitVectors


class Task(NamedTuple):
    """A bundle for a worker: the gradient at a vector, of the mean over the batch."""

    given: Given
    at: str
    fraction_bits: int


@dataclass
class Sent:
    """An order on its way. `lives`: of its buckets when it was sent; `place`: in the journal; `counts`: its numbers."""

    order: Order
    lives: dict[int, int]
    place: int
    counts: bool = False


@dataclass
class Bucket:
    """What is known of a bucket.

    Attributes:
        left: what it has to do before it has done all of the journal: (place, entry).
        life: how often it has lost its scratch.
        commit, commit_most: the last commit of its shards, the least and the most.
        counted: whether the numbers of the round that is asked for now are known of it.
        point_made: its life in which the point of the present commit was made again where the commit is done.
    """

    left: list[tuple[int, Entry]] = field(default_factory=list)
    life: int = 0
    commit: int = 0
    commit_most: int = 0
    counted: bool = False
    point_made: int = 0

    def begin_again(self, commit: int) -> None:
        """Forgets what it has; it counts as being at a commit."""
        self.left.clear()
        self.life += 1
        self.commit = self.commit_most = commit


class Reductions:
    """The numbers that a round asks for, while servers say what each of them has found."""

    def __init__(self, commands: Sequence[Command]) -> None:
        self._asked = [command for command in commands if isinstance(command, Reduce)]
        self._found: list[list[Parts]] = [[] for _ in self._asked]

    def add(self, parts: Sequence[Sequence[Parts]]) -> None:
        """Takes, for each number, what some buckets have found."""
        for known, found in zip(self._found, parts, strict=True):
            known.extend(found)

    def numbers(self) -> list[float]:
        """Returns the numbers, the same ones in whatever order their parts came."""
        return [combined(one.operation, parts) for one, parts in zip(self._asked, self._found, strict=True)]
