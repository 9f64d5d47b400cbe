"""One flight's work as a list of steps, run natively where everything is compiled, by Python otherwise.

A step waits for words, then makes calls or runs a function. Consecutive steps that are all calls become one native
function in segments (`adamctl.kernels.segments`); a function of Python stands between them. Both stop where a word has
not come, and go on there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.kernels.layers.losses import Answers
from adamctl.kernels.native import REFUSED, Call, NativeCheck, Word, address_of
from adamctl.kernels.numeric.mix import set_key
from adamctl.kernels.operation import Array, Key
from adamctl.kernels.partition.accruing import (
    ACCRUED,
    CLIPPED,
    CORRECT,
    IMAGES,
    LABELS,
    LOSS,
    RATE,
    SHARE,
    WORDS,
    Accruing,
    SlotPlace,
)
from adamctl.kernels.segments import FLIGHT, SPINS, Advance, Post, Segment, Words, compile_segments


class Batch(NamedTuple):
    """The examples of a flight: images [n, *input], float32, and labels [n], int32, or targets [n, k], float32.

    All are C-contiguous.

    `key` decides what is left to chance (`adamctl.kernels.numeric.mix.step_key`).

    With replicas in step a flight is a part of its replica's batch, which has `whole` examples; `first` is the place of
    its first one there. `whole` 0: it is no part of a larger one. A portion of a bundle is a part of a whole
    portion.
    """

    images: Array
    labels: Answers
    key: int = 0
    whole: int = 0
    first: int = 0

    @property
    def is_last(self) -> bool:
        """Whether no part of its batch comes after it."""
        return not self.whole or self.first + len(self.labels) == self.whole

    @property
    def share(self) -> float:
        """The share of its examples in their batch."""
        return len(self.labels) / self.whole if self.whole else 1.0


@dataclass
class Row:
    """What a flight is told, and what it finds.

    Attributes:
        place: where it accrues.
        share: of its examples in their batch.
        rate: learning rate of its local update.
        loss: summed loss of its batch; 0 where another partition computes it.
        correct: its correctly classified examples.
        clipped: layers whose gradient was scaled down.
        sums: of an evaluation, what its loss adds up for its metric.
    """

    place: SlotPlace = field(default_factory=SlotPlace)
    rate: float = 0.0
    share: float = 1.0
    loss: float = 0.0
    correct: int = 0
    clipped: int = 0
    sums: tuple[float, ...] = ()


Work: TypeAlias = Callable[[Batch, Row], None]
"""A step's work in Python."""


@dataclass
class Step:
    """One step of a flight.

    Attributes:
        words: have to reach the flight's number first.
        calls: its work natively; None if that is not possible.
        work: its work in Python.
        posts: written when it is done.
    """

    words: tuple[Words, ...]
    calls: list[Call] | None
    work: Work
    posts: list[Post] = field(default_factory=list)


class Program:
    """The steps of the flights of one context.

    Attributes:
        is_native: whether no step needs Python.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        stand_ins: Mapping[int, NDArray[np.generic]],
        native: bool,
        key: Key,
        accruing: Accruing | None = None,
        firsts: Sequence[NDArray[np.uint32]] = (),
    ) -> None:
        """Args:
        stand_ins: IMAGES and LABELS -> the arrays that stand for them in the calls.
        key: what the steps read the flight's key from.
        accruing: where flights accrue, if they do; the calls name the first slot.
        firsts: what the steps read the place of the flight's first example in its batch from.
        """
        self._firsts = tuple(firsts)
        stand_ins, self._accruing = dict(stand_ins), accruing
        if accruing is not None:
            stand_ins |= accruing.stand_ins()
        self._words = np.zeros(WORDS + (2 * len(accruing.factors) if accruing is not None else 0), np.int64)
        self._place = address_of(self._words)
        self._key = key
        self._row = Row()
        self._pieces: list[_Native | Step] = []
        self._words_of: list[list[tuple[Words, ...]]] = []  # of each piece, those that each segment waits for
        waiting: list[Segment] = []
        for step in steps:
            if native and step.calls is not None:
                waiting.append(Segment(step.words, [*step.calls, *step.posts]))
                continue
            self._end(waiting, stand_ins)
            self._pieces.append(step)
            self._words_of.append([step.words])
        self._end(waiting, stand_ins)
        self.is_native = all(isinstance(piece, _Native) for piece in self._pieces)
        self._piece = self._segment = 0
        self._batch: Batch | None = None

    def _end(self, waiting: list[Segment], stand_ins: Mapping[int, NDArray[np.generic]]) -> None:
        if waiting:
            self._pieces.append(_Native(compile_segments(waiting, stand_ins), len(waiting)))
            self._words_of.append([segment.words for segment in waiting])
            waiting.clear()

    def begin(self, flight: int, batch: Batch, place: SlotPlace = SlotPlace(), rate: float = 0.0) -> None:
        """Begins a flight, whose number is greater than all before; `place`, `rate`: see `Row`."""
        self._piece = self._segment = 0
        self._batch, self._row = batch, Row(place, rate, batch.share)
        set_key(self._key, batch.key)
        for first in self._firsts:
            first[0] = batch.first
        words = self._words
        words[FLIGHT] = flight
        words[IMAGES], words[LABELS] = address_of(batch.images), address_of(batch.labels)
        if self._accruing is not None:
            words[ACCRUED:] = self._accruing.addresses(place)
        words[RATE : RATE + 1].view(np.float32)[0] = rate
        words[SHARE : SHARE + 1].view(np.float32)[0] = batch.share
        words[LOSS : CLIPPED + 1] = 0

    def advance(self, spins: int = 0) -> bool:
        """Goes on until a word has not come; returns whether the flight is done.

        Args:
            spins: how many times to look at a word again before giving up.

        Raises:
            ValueError: a label is out of range, or a target is not finite.
            RuntimeError: a compiled kernel failed.
        """
        self._words[SPINS] = spins
        while self._piece < len(self._pieces):
            piece = self._pieces[self._piece]
            if isinstance(piece, _Native):
                reached = piece.advance(self._place, self._segment)
                if reached < 0:
                    self._failed(reached)
                if reached < piece.segments:
                    self._segment = reached
                    return False
            elif not self._run(piece):
                return False
            self._piece, self._segment = self._piece + 1, 0
        return True

    @property
    def position(self) -> tuple[int, int]:
        """Where the flight stands: greater when something was done."""
        return self._piece, self._segment

    @property
    def awaited(self) -> list[Words]:
        """The words that have not come and without which the flight cannot go on; any thread may ask."""
        piece, segment, flight = self._piece, self._segment, int(self._words[FLIGHT])
        segments = self._words_of[piece] if piece < len(self._words_of) else []
        return [word for word in segments[segment] if int(word[0]) < flight] if segment < len(segments) else []

    @property
    def found(self) -> Row:
        """Returns what the flight has found; whole when it is done."""
        row, words = self._row, self._words
        row.loss += float(words[LOSS : LOSS + 1].view(np.float64)[0])
        row.correct, row.clipped = row.correct + int(words[CORRECT]), row.clipped + int(words[CLIPPED])
        words[LOSS : CLIPPED + 1] = 0
        return row

    def _run(self, step: Step) -> bool:
        flight = int(self._words[FLIGHT])
        with _FENCE:
            ready = all(int(word[0]) >= flight for word in step.words)
        if not ready:
            return False
        assert self._batch is not None
        step.work(self._batch, self._row)
        for post in step.posts:
            post_by_python(post, flight)
        return True

    def _failed(self, code: int) -> None:
        assert self._batch is not None
        labels = self._batch.labels
        if code == REFUSED:
            if labels.ndim == 2:
                raise ValueError("targets: expected finite numbers; found some that are not")
            raise ValueError(f"labels: expected classes of the network; found {labels.min()} to {labels.max()}")
        raise RuntimeError(f"a compiled kernel failed with code {code}")


class _Native(NamedTuple):
    advance: Advance
    segments: int


_FENCE = Lock()
"""Taking and releasing a lock orders what Python writes and reads, as the native function's words do by themselves."""


def post_by_python(post: Post, flight: int) -> None:
    """As a native function posts. Without a compiler a wake may be missed, so sleepers look again after a while."""
    with _FENCE:
        post.word[0] = flight + post.ahead
    with _FENCE:
        asleep = [wake for wake in post.wakes if wake.sleepers[0] > 0]
    for wake in asleep:
        with suppress(OSError):  # it is full of wakes, or the sleeper's process has ended
            os.write(wake.descriptor, b"\0")


def check_of_labels() -> list[Call]:
    """Returns the call that ends a flight whose labels are out of range."""
    return [NativeCheck(Word(CORRECT))]
