"""What one shard has of a batch algorithm's vectors besides its values and state: scratch, one evaluation (pure; 0032).

All of it is lost with the process that serves the shard, and a shard that was taken over begins with none. Kept vectors
are the shard's state, and the number of its last commit is in its exactly-once memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from adamctl.kernels.numeric.exact_sums import Totals
from adamctl.kernels.operation import Array
from adamctl.model.commands import ACCUMULATOR, PARAMETERS
from adamctl.roles.ps.core.buffers import Scratch
from adamctl.wire.constants import ErrorCode

BUNDLES_MAX = 1 << 16
DONE = (int(ErrorCode.OK), "")
"""The outcome of what has been carried out before."""

Outcome = tuple[int, str]
"""(code, message)."""


class ShardVectors:
    """One shard's scratch.

    Attributes:
        names: kept vectors -> their places in the shard's state.
        kept: those, and the parameters.
        scratch: the scratch vectors that were written since the shard is served here.
        accumulator: int64, in units of 2^-fraction_bits; made with the first evaluation.
        evaluation: the last one opened, 0 before the first; of `bundles`, `missing` are not counted yet.
        at: the vector it was opened at; empty if that was written meanwhile.
        spoiled: code and message of the first gradient that was refused in it; code 0 if there was none.
        round, found: the last round and what its reductions have found.
        queue: what waits for the batch in progress, in order.
        changed_at: the shard's counter when its values, and each array of its state, were last written.
    """

    __slots__ = ("_counted", "accumulator", "at", "bundles", "changed_at", "evaluation", "found", "fraction_bits",
                 "kept", "missing", "names", "queue", "round", "scratch", "spoiled")  # fmt: skip

    def __init__(self, counter: int, kept: Sequence[str]) -> None:
        """`counter`: of the shard; `kept`: names of its state arrays."""
        self.names = {name: place for place, name in enumerate(kept)}
        self.kept = frozenset((PARAMETERS, *kept))
        self.scratch: dict[str, Scratch] = {}
        self.accumulator: Array | None = None
        self.evaluation = self.bundles = self.missing = self.round = self.fraction_bits = 0
        self.at = ""
        self.spoiled: Outcome = DONE
        self.found: Totals | None = None
        self.queue: deque[Any] = deque()
        self.changed_at = [counter] * (1 + len(kept))
        self._counted = bytearray()

    # --- evaluations --------------------------------------------------------------------------------------------------

    def open_outcome(self, evaluation: int, at: str, last_round: int = -1) -> Outcome | None:
        """Says what opening an evaluation comes to; None: it is to be done. `last_round`: see `commit_outcome`."""
        if evaluation < self.evaluation:
            return ErrorCode.STALE_EVALUATION, f"evaluation {self.evaluation} is open; found {evaluation}"
        found = self._late(last_round) or self._lacks((at,))
        if found is None and evaluation == self.evaluation:
            if at not in self.kept:  # those are written by commits alone, to other numbers
                self.at = at  # it may have been written again
            return DONE  # bundles may have been counted meanwhile
        return found

    def opened(self, evaluation: int, at: str, fraction_bits: int, bundles: int, accumulator: Array) -> None:
        """Notes a new evaluation; `accumulator` is zero everywhere."""
        self.evaluation, self.at, self.fraction_bits = evaluation, at, fraction_bits
        self.bundles = self.missing = bundles
        self._counted = bytearray(-(-bundles // 8))
        self.spoiled, self.accumulator = DONE, accumulator

    def bundle_outcome(self, evaluation: int, bundle: int) -> Outcome | None:
        """Says what a bundle's gradient comes to; None: it is to be added."""
        if evaluation > self.evaluation:
            return ErrorCode.NO_VECTOR, f"evaluation {evaluation} has not been opened here"
        if evaluation < self.evaluation:
            return DONE
        if not 0 <= bundle < self.bundles:
            return ErrorCode.BAD_RANGE, f"evaluation {evaluation} has {self.bundles} bundles; found number {bundle}"
        return DONE if self.has(bundle) else None

    def has(self, bundle: int) -> bool:
        """Returns whether a bundle of this evaluation is counted."""
        return bool(self._counted[bundle >> 3] >> (bundle & 7) & 1)

    def added(self, bundle: int) -> None:
        """Notes that a bundle was added."""
        self._counted[bundle >> 3] |= 1 << (bundle & 7)
        self.missing -= 1

    def spoil(self, outcome: Outcome) -> None:
        """Notes that a gradient of this evaluation was refused."""
        if not self.spoiled[0]:
            self.spoiled = outcome

    def pull_outcome(self, vector: str, evaluation: int) -> Outcome:
        """Says whether a vector can be pulled for an evaluation; code 0: it can."""
        if evaluation > self.evaluation:
            return ErrorCode.NO_VECTOR, f"evaluation {evaluation} has not been opened here"
        if evaluation < self.evaluation or vector != self.at:
            known = f"{self.at!r} of evaluation {self.evaluation}" if self.at else "none"
            return ErrorCode.STALE_EVALUATION, f"expected {known}; found {vector!r} of evaluation {evaluation}"
        return DONE

    # --- commands -----------------------------------------------------------------------------------------------------

    def round_outcome(
        self, last: int, number: int, after: int, evaluation: int, inputs: Collection[str]
    ) -> Outcome | None:
        """Says what a round comes to; None: it is to be carried out.

        Args:
            last: the shard's last commit; it must be `after`, unless that is -1.
            inputs: what the round reads before it writes it.
        """
        if number < self.round:
            return ErrorCode.STALE_ROUND, f"round {self.round} has been carried out; found {number}"
        if number == self.round:
            return DONE
        if after not in (-1, last):
            return ErrorCode.SEQUENCE_GAP, f"the shard is at commit {last}; the round comes after {after}"
        return self._inputs_outcome(evaluation, inputs)

    def commit_outcome(
        self, last: int, number: int, anew: bool, evaluation: int, inputs: Collection[str], last_round: int = -1
    ) -> Outcome | None:
        """Says what a commit comes to; None: it is to be carried out.

        Args:
            last: the shard's last commit.
            last_round: the last one that was sent before this commit; -1: any. If a later one has been carried out, the
                commit was refused here before, and scratch is not what it was meant for.
        """
        if number <= last:
            return DONE
        if number != last + 1 and not anew:
            return ErrorCode.SEQUENCE_GAP, f"expected commit {last + 1}; found {number}"
        return self._late(last_round) or self._inputs_outcome(evaluation, inputs)

    def _late(self, last_round: int) -> Outcome | None:
        if last_round < 0 or self.round <= last_round:
            return None
        return ErrorCode.STALE_ROUND, f"round {self.round} has been carried out; found what came after {last_round}"

    def _inputs_outcome(self, evaluation: int, inputs: Collection[str]) -> Outcome | None:
        """Returns why commands cannot read what they read, None if they can."""
        if ACCUMULATOR in inputs and (outcome := self._sum_outcome(evaluation)) is not None:
            return outcome
        return self._lacks(inputs)

    def _sum_outcome(self, evaluation: int) -> Outcome | None:
        """Returns why the sum of an evaluation cannot be read, None if it can."""
        if evaluation < self.evaluation:
            return ErrorCode.STALE_EVALUATION, f"evaluation {self.evaluation} is open; found {evaluation}"
        if evaluation > self.evaluation:
            return ErrorCode.NO_VECTOR, f"evaluation {evaluation} has not been opened here"
        if self.spoiled[0]:
            return self.spoiled
        if self.missing:
            return ErrorCode.NOT_READY, f"{self.missing} of {self.bundles} bundles are missing"
        return None

    def _lacks(self, names: Iterable[str]) -> Outcome | None:
        there = self.kept | self.scratch.keys() | {ACCUMULATOR}
        missing = sorted(name for name in names if name not in there)
        if not missing:
            return None
        return ErrorCode.NO_VECTOR, f"{', '.join(missing)} not written since this server took the shard over"

    def places(self, names: Collection[str]) -> list[int]:
        """Returns which arrays of a shard kept vectors are, the values being the first."""
        return [place for place, name in enumerate((PARAMETERS, *self.names)) if name in names]

    def lengths_since(self, counter: int, lengths: Sequence[int]) -> tuple[int, ...]:
        """Returns how many elements of each array a holder of the version with this counter is to be sent."""
        return tuple(
            length if changed > counter else 0 for changed, length in zip(self.changed_at, lengths, strict=True)
        )

    def written(self, name: str) -> None:
        """Notes that a vector is about to be written: workers must not get it for the evaluation any more."""
        if name == self.at:
            self.at = ""
