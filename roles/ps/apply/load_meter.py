"""Measures how busy a server's apply threads are and how fast they work; clients get it with the answers to pushes."""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.wire.messages import ServerLoad

SAMPLE_EVERY_S = 0.5


class Work:
    """What one apply thread has done so far; written by that thread only."""

    __slots__ = ("added", "adding_s", "multiplied", "multiplying_s")

    def __init__(self) -> None:
        self.added = 0  # elements of gradients and deltas
        self.adding_s = 0.0
        self.multiplied = 0  # multiply-adds of factors
        self.multiplying_s = 0.0


class LoadMeter:
    """Computes a `ServerLoad` from the threads' work every SAMPLE_EVERY_S seconds.

    Attributes:
        load: the last reading; None before the first.
    """

    def __init__(self, now: float) -> None:
        self.load: ServerLoad | None = None
        self._sampled_s = now
        self._busy_before_s = 0.0

    def due(self, now: float) -> bool:
        """Whether it is time for a reading."""
        return now - self._sampled_s >= SAMPLE_EVERY_S

    def sample(self, now: float, busy_s: float, works: Sequence[Work], threads: int) -> None:
        """Takes a reading; `busy_s` is the total time that all `threads` have worked, `works` what they did."""
        elapsed_s = now - self._sampled_s
        busy = (busy_s - self._busy_before_s) / (elapsed_s * threads)
        self._sampled_s, self._busy_before_s = now, busy_s
        self.load = ServerLoad(
            min(max(busy, 0.0), 1.0),
            _rate(sum(work.multiplied for work in works), sum(work.multiplying_s for work in works), threads),
            _rate(sum(work.added for work in works), sum(work.adding_s for work in works), threads),
        )


def _rate(done: int, taken_s: float, threads: int) -> float:
    """Returns what all threads together do per second of work; 0.0 if there was none yet."""
    return done / taken_s * threads if taken_s > 0 else 0.0
