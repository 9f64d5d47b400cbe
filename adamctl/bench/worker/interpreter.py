"""The share of a worker's steps that holds the interpreter lock, and the resulting limit for many threads.

While threads train, an observer wakes at random moments, outside the lock, and then asks for it. Random moments that
are independent of the threads find the lock held in proportion to the time that it is held, so the share of wakes that
had to wait is the share of time that it is held. This changes and slows no step, whatever its kernels are made of. On a
shared machine, other programs may also delay a look, and so may the caches that training sweeps: how often that happens
while as many threads walk through as much memory without the lock is subtracted.

This counts all holders of the lock while compute threads train: the threads themselves, between native calls, including
taking batches and reporting. A thread that waits for the lock is not counted. There is no event loop here: the work of
a worker's own loop (reading, pushing, fetching) is not included.
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import installed

WAIT_NS = 8_000  # a free lock takes a tenth of this; a held one means sleeping and waking, which takes more
NAP_US = (20, 300)  # between looks: never synchronised with the steps
WARM_UP_S = 0.3
TURNS = 4  # per round
BURN_NS = 5_000_000
BURN_BYTES = 8 << 20  # memory that a thread walks through: about as much as a step, more than a core's own caches

Wait: TypeAlias = Callable[[int, NDArray[np.int64]], int]
"""Takes a time and scratch [2], waits without the lock and returns the clock in nanoseconds before retaking it."""

Burn: TypeAlias = Callable[[int, NDArray[np.int64], NDArray[np.float32]], float]
"""Takes a time, scratch [2] and memory, and walks through the memory for that long without the lock."""


@dataclass(frozen=True)
class InterpreterShare:
    """The result of the measurement.

    Attributes:
        held: share of time during which a compute thread held the lock.
        per_step_us: microseconds per step that the lock was held.
        step_us: microseconds of a step of one thread.
        looks: number of the observer's wakes behind `held`.
        is_native: whether forward, loss and backward of a step are one native function.
    """

    threads: int
    batch: int
    held: float
    per_step_us: float
    step_us: float
    looks: int
    is_native: bool

    def speed_up(self, threads: int) -> float:
        """The speed-up of `threads` threads on as many cores if only this lock limits them, one thread being 1.

        Exact mean-value analysis of threads that alternate between their own work and one first-come-first-served lock.
        """
        alone = self.step_us - self.per_step_us
        queued = 0.0
        for count in range(1, threads + 1):
            at_lock = self.per_step_us * (1 + queued)
            rate = count / (alone + at_lock)
            queued = rate * at_lock
        return rate * self.step_us


def interpreter_share(
    experiment: Experiment, batch: int, threads: int = 1, seconds: float = 1.0, rounds: int = 3, seed: int = 0
) -> InterpreterShare:
    """Trains on synthetic examples and observes the lock; the median of several rounds counts.

    Args:
        experiment: the source of model, clipping and push settings.
        batch: examples per step.
        threads: compute threads; a quiet measurement needs one more core for the observer.
        seconds, rounds: length and number of rounds.
        seed: seed of the observer's naps.

    Raises:
        ConfigurationError: numba, which the observer needs, is not installed.
    """
    nap, burn = _make_waits()
    with closing(Trainer(experiment, threads, batch)) as trainer:
        trainer.run(WARM_UP_S)
        found = [_round(trainer, nap, burn, seconds, seed + number) for number in range(rounds)]
    share = sorted(found, key=lambda share: share.held)[len(found) // 2]
    return replace(share, held=max(share.held, 0.0), per_step_us=max(share.per_step_us, 0.0))


def _round(trainer: Trainer, nap: Wait, burn: Burn, seconds: float, seed: int) -> InterpreterShare:
    """Alternates between training and work without the lock, so that other programs affect both alike."""
    threads, batch = trainer.threads, trainer.batch
    idle, training = _Looks(), _Looks()
    examples, trained_s = 0, 0.0
    for turn in range(TURNS):
        with _Burners(threads, burn), _Observer(nap, seed * TURNS + turn, idle):
            time.sleep(seconds / TURNS)
        with _Observer(nap, seed * TURNS + turn, training):
            rate = trainer.run(seconds / TURNS)
        examples, trained_s = examples + rate.examples, trained_s + rate.seconds
    step_us = 1e6 * trained_s * threads * batch / examples
    held = (training.share - idle.share) / (1 - min(idle.share, 0.5))
    return InterpreterShare(threads, batch, held, held * step_us / threads, step_us, training.looks, trainer.is_native)


@dataclass
class _Looks:
    """How often an observer asked for the lock, and how often it had to wait."""

    looks: int = 0
    waited: int = 0

    @property
    def share(self) -> float:
        return self.waited / max(self.looks, 1)


class _Observer:
    """A thread that counts in `looks` how often it finds the lock held; valid once it has stopped."""

    def __init__(self, nap: Wait, seed: int, looks: _Looks) -> None:
        self._random, self._nap, self._looks = random.Random(seed), nap, looks
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="observer", daemon=True)

    def __enter__(self) -> _Observer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._thread.join()

    def _run(self) -> None:
        nap, clock, scratch, looks = self._nap, time.perf_counter_ns, np.zeros(2, np.int64), self._looks
        while not self._stopping:
            woken_ns = nap(self._random.randrange(*NAP_US), scratch)
            looks.waited += clock() - woken_ns > WAIT_NS
            looks.looks += 1


class _Burners:
    """Threads that keep as many cores and caches busy as training would, without the lock."""

    def __init__(self, threads: int, burn: Burn) -> None:
        self._burn, self._stopping = burn, False
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        scratch, memory = np.zeros(2, np.int64), np.ones(BURN_BYTES // 4, np.float32)
        while not self._stopping:
            self._burn(BURN_NS, scratch, memory)


def _make_waits() -> tuple[Wait, Burn]:
    """Returns a function that sleeps for some microseconds and one that walks through memory for some nanoseconds.

    Only compiled code can read the clock while it does not hold the lock.
    """
    if "numba" not in installed():
        raise ConfigurationError(
            "the share of the interpreter lock: expected numba; found it not installed; pip install numba"
        )
    import numba

    library = ctypes.CDLL(None)
    clock_gettime, usleep = library.clock_gettime, library.usleep
    clock_gettime.argtypes, clock_gettime.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_int
    usleep.argtypes, usleep.restype = [ctypes.c_uint], ctypes.c_int
    monotonic = int(time.CLOCK_MONOTONIC)

    def nap(duration_us: int, scratch: NDArray[np.int64]) -> int:
        usleep(duration_us)
        clock_gettime(monotonic, scratch.ctypes.data)
        return int(scratch[0] * 1_000_000_000 + scratch[1])

    def burn(duration_ns: int, scratch: NDArray[np.int64], memory: NDArray[np.float32]) -> float:
        clock_gettime(monotonic, scratch.ctypes.data)
        start_ns = now_ns = scratch[0] * 1_000_000_000 + scratch[1]
        total = np.float32(0)
        while now_ns - start_ns < duration_ns:
            for i in range(len(memory)):
                memory[i] += np.float32(1)
            total += memory[0]
            clock_gettime(monotonic, scratch.ctypes.data)
            now_ns = scratch[0] * 1_000_000_000 + scratch[1]
        return float(total)

    return (
        cast("Wait", numba.njit("int64(int64, int64[::1])", nogil=True)(nap)),
        cast("Burn", numba.njit("float32(int64, int64[::1], float32[::1])", nogil=True)(burn)),
    )
