"""Requests on a batch algorithm's vectors, each of which becomes one piece of work per shard (pure; 0032).

A piece says what it comes to when its turn comes (`outcome`), which arrays it needs (`batch`), and what its shard has
when an apply thread has carried it out (`finish`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.numeric.exact_sums import Totals
from adamctl.kernels.operation import Array
from adamctl.model.commands import ACCUMULATOR, PARAMETERS, Command, inputs_of
from adamctl.roles.ps.core.buffers import Scratch, Values
from adamctl.roles.ps.core.flush import Entry
from adamctl.roles.ps.core.push import Token
from adamctl.roles.ps.core.replicas import ShardReplicas
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.shard_vectors import Outcome, ShardVectors


class VectorBatch:
    """One piece of work on a shard; its apply thread owns it until it is done.

    Attributes:
        arrays: what is read or written, by name; state and values are not replaced unless they are in `copied`.
        new: vectors to be made before they are written.
        copied: vectors of which a copy is written, since they are being read.
        made: set by the thread: the arrays it has made, by name.
        found: set by the thread: what reductions have found.
        code, message: set by the thread: why the work was refused.
        begun: set by the thread: something may have been written.
        in_place, copy_state: values are overwritten; no state is.
    """

    __slots__ = ("arrays", "begun", "code", "copied", "copy_state", "found", "in_place", "made", "message", "new",
                 "request", "shard", "updates")  # fmt: skip

    def __init__(self, shard: Shard, request: VectorRequest) -> None:
        self.shard, self.request = shard, request
        self.arrays: dict[str, Array] = {}
        self.new: list[str] = []
        self.copied: list[str] = []
        self.made: dict[str, Array] = {}
        self.found: Totals | None = None
        self.updates: tuple[Any, ...] = ()
        self.code = 0
        self.message = ""
        self.begun = self.in_place = False
        self.copy_state = True

    @property
    def damaged(self) -> bool:
        """Whether it failed while it overwrote what is kept."""
        return bool(self.code) and self.begun and (self.in_place or not self.copy_state)

    def failed(self, code: int, message: str) -> None:
        """Notes that the thread failed."""
        self.code, self.message = code, message

    def bring_home(self, thread: int) -> None:
        """Scratch is made by the thread that owns the shard; what is kept stays where it is."""

    def spoil(self) -> None:
        """Overwrites what was damaged with NaN, in case it is still read."""
        for name in self.request.targets - set(self.copied):
            if name in self.arrays:
                self.arrays[name].fill(float("nan"))


class VectorRequest:
    """A request in progress.

    Attributes:
        targets: the vectors that it writes.
        asked: its buckets, or of an `Addition` its shards, in order.
        remaining: how many pieces are not settled, and one for the request itself while it is taken in.
        outcomes: shard -> what became of its piece.
        buckets: those of its buckets that are served here -> their shards.
        refused: the other ones -> why.
        stored, copies: see `Awaiting`.
        queued: its body is kept until it is answered.
    """

    targets: frozenset[str] = frozenset()

    def __init__(self, token: Token) -> None:
        self.token = token
        self.remaining = 1
        self.asked: tuple[int, ...] = ()
        self.outcomes: dict[int, Outcome] = {}
        self.buckets: dict[int, list[Shard]] = {}
        self.refused: dict[int, Outcome] = {}
        self.routing: dict[int, int] = {}
        self.stored: list[tuple[Entry, int]] = []
        self.copies: list[tuple[ShardReplicas, int]] | None = None
        self.queued = False

    def outcome(self, shard: Shard) -> Outcome | None:
        """Returns what the piece comes to without any work, None if it is to be carried out."""
        raise NotImplementedError

    def batch(self, shard: Shard) -> VectorBatch:
        """Returns the work."""
        raise NotImplementedError

    def finish(self, batch: VectorBatch) -> bool:
        """Takes over what a thread has done; returns whether what is kept has changed."""
        raise NotImplementedError


class Opening(VectorRequest):
    """Opens an evaluation."""

    def __init__(
        self, token: Token, evaluation: int, at: str, fraction_bits: int, bundles: int, last_round: int = -1
    ) -> None:
        super().__init__(token)
        self.evaluation, self.at, self.fraction_bits, self.bundles = evaluation, at, fraction_bits, bundles
        self.last_round = last_round

    def outcome(self, shard: Shard) -> Outcome | None:
        return vectors_of(shard).open_outcome(self.evaluation, self.at, self.last_round)

    def batch(self, shard: Shard) -> VectorBatch:
        batch, accumulator = VectorBatch(shard, self), vectors_of(shard).accumulator
        if accumulator is not None:
            batch.arrays[ACCUMULATOR] = accumulator
        return batch

    def finish(self, batch: VectorBatch) -> bool:
        vectors = vectors_of(batch.shard)
        if batch.code:  # the sums of the evaluation before may have been emptied
            vectors.spoil((batch.code, batch.message))
            return False
        accumulator = batch.made.get(ACCUMULATOR)
        accumulator = batch.arrays[ACCUMULATOR] if accumulator is None else accumulator
        vectors.opened(self.evaluation, self.at, self.fraction_bits, self.bundles, accumulator)
        return False


class Addition(VectorRequest):
    """Adds the gradient of a bundle.

    Attributes:
        places: shard -> where its gradient begins in the body, in bytes.
        body: read by apply threads until the request is answered.
        held_bytes: of the body, in this server's memory.
    """

    def __init__(self, token: Token, evaluation: int, bundle: int, weight: float, body: memoryview) -> None:
        super().__init__(token)
        self.evaluation, self.bundle, self.weight, self.body = evaluation, bundle, weight, body
        self.places: dict[int, int] = {}
        self.held_bytes = 0

    def outcome(self, shard: Shard) -> Outcome | None:
        return vectors_of(shard).bundle_outcome(self.evaluation, self.bundle)

    def batch(self, shard: Shard) -> VectorBatch:
        batch, vectors = VectorBatch(shard, self), vectors_of(shard)
        assert vectors.accumulator is not None
        batch.arrays[ACCUMULATOR] = vectors.accumulator
        return batch

    def finish(self, batch: VectorBatch) -> bool:
        vectors = vectors_of(batch.shard)
        if batch.code:
            vectors.spoil((batch.code, f"bundle {self.bundle}: {batch.message}"))
        else:
            vectors.added(self.bundle)
        return False


class Commands(VectorRequest):
    """What rounds and commits share: commands, and the arrays that they read and write.

    Attributes:
        prepared: the commands, laid out for all shards.
        inputs: what they read before they write it.
    """

    def __init__(self, token: Token, number: int, commands: Sequence[Command], evaluation: int) -> None:
        """Raises ConfigurationError if a command is malformed."""
        super().__init__(token)
        self.number, self.prepared, self.evaluation = number, PreparedRound(commands), evaluation
        self.targets, self.inputs = self.prepared.writes, inputs_of(commands)

    def batch(self, shard: Shard) -> VectorBatch:
        batch, vectors, state = VectorBatch(shard, self), vectors_of(shard), shard.state
        names = self.inputs | self.targets
        held: dict[str, Values] = {PARAMETERS: shard.values, **vectors.scratch}
        for name in names:
            if name in held:
                batch.arrays[name] = held[name].array
            elif name in vectors.names:
                batch.arrays[name] = state.arrays[vectors.names[name]]
            elif name == ACCUMULATOR and vectors.accumulator is not None:
                batch.arrays[name] = vectors.accumulator
        for name in self.targets:
            vectors.written(name)
            if name not in batch.arrays:
                batch.new.append(name)
            elif held[name].readers if name in held else state.is_read:
                batch.copied.append(name)
        batch.in_place = PARAMETERS in self.targets and PARAMETERS not in batch.copied
        batch.copy_state = not any(name in vectors.names and name not in batch.copied for name in self.targets)
        return batch


class Round(Commands):
    """Writes scratch and finds numbers.

    Attributes:
        found: shard -> what reductions have found there.
    """

    def __init__(
        self, token: Token, number: int, commands: Sequence[Command], evaluation: int, after: int = -1
    ) -> None:
        super().__init__(token, number, commands, evaluation)
        self.after = after
        self.found: dict[int, Totals] = {}

    def outcome(self, shard: Shard) -> Outcome | None:
        vectors, last = vectors_of(shard), shard.memory.commit
        outcome = vectors.round_outcome(last, self.number, self.after, self.evaluation, self.inputs)
        if outcome is not None and not outcome[0] and vectors.found is not None:
            self.found[shard.index] = vectors.found
        return outcome

    def finish(self, batch: VectorBatch) -> bool:
        vectors, shard = vectors_of(batch.shard), batch.shard
        if batch.code:
            for name in self.targets if batch.begun else ():
                vectors.scratch.pop(name, None)
            return False
        for name, array in batch.made.items():
            vectors.scratch[name] = Scratch(array, shard)
        assert batch.found is not None
        vectors.round, vectors.found = self.number, batch.found
        self.found[shard.index] = batch.found
        return False


class Commit(Commands):
    """Writes what is kept."""

    def __init__(
        self, token: Token, number: int, commands: Sequence[Command], evaluation: int, anew: bool, last_round: int = -1
    ) -> None:
        super().__init__(token, number, commands, evaluation)
        self.anew, self.last_round = anew, last_round

    def outcome(self, shard: Shard) -> Outcome | None:
        vectors, last = vectors_of(shard), shard.memory.commit
        return vectors.commit_outcome(last, self.number, self.anew, self.evaluation, self.inputs, self.last_round)

    def finish(self, batch: VectorBatch) -> bool:
        if batch.code:
            return False
        shard, vectors = batch.shard, vectors_of(batch.shard)
        made = batch.made
        if PARAMETERS in made:
            old, shard.values = shard.values, Values(made[PARAMETERS], shard)
            if not old.readers and shard.spare is None:
                shard.spare = old.array
        arrays = [made.get(name, array) for name, array in zip(vectors.names, shard.state.arrays, strict=True)]
        shard.state = shard.state.followed_by(arrays)
        shard.counter += 1
        shard.memory.commit = self.number
        for place in vectors.places(self.targets):
            vectors.changed_at[place] = shard.counter
        return True


def vectors_of(shard: Shard) -> ShardVectors:
    """Returns a shard's scratch, which every shard of such a job has."""
    assert shard.vectors is not None
    return shard.vectors
