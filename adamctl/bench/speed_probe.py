"""How fast this machine computes from moment to moment: where it shares its hardware with others, by up to twice.

A process beside what is measured makes a training step from time to time. The processor time of that step says how
fast a core is just then, however long the process waits for one. So what was measured in one minute can be compared
with what was predicted from rates of another.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from adamctl.bench.worker.trainer import Trainer
from adamctl.config.experiment import Experiment
from adamctl.errors import RunFailedError

EVERY_S = 0.3
STEP_S = 15e-3
"""Of a processor, that a step may take: more would be missed by what is measured. A step of a few examples would find
them all in its core's own cache, and would not be slowed down by those who share the others, as whole batches are."""
WARM_STEPS = 20
START_S, END_S = 120.0, 10.0


class SpeedProbe:
    """A context in which a step of one thread is made every EVERY_S: a few hundredths of a core."""

    def __init__(self, experiment: Experiment, batch: int) -> None:
        """`batch`: most examples of a step."""
        self._samples: list[tuple[float, float]] = []
        self._began = threading.Event()
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_make_steps, args=(experiment, batch, theirs), daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> SpeedProbe:
        """Returns once the first step was made. Raises RunFailedError: the process has ended, or takes too long."""
        self._reader.start()
        if not self._began.wait(START_S) or not self._samples:
            self.__exit__()
            raise RunFailedError("the process that says how fast this machine is has not begun")
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join(END_S)
        self._reader.join(END_S)
        self._ours.close()

    def speed(self, from_s: float, to_s: float) -> float:
        """Returns the steps per second of processor time, averaged over a period of `time.monotonic`.

        Raises:
            RunFailedError: no step was made in it.
        """
        found = [1 / took_s for at_s, took_s in list(self._samples) if from_s <= at_s <= to_s]
        if not found:
            raise RunFailedError(f"no step says how fast this machine was in these {to_s - from_s:.1f} s")
        return statistics.fmean(found)

    def _read(self) -> None:
        try:
            while True:
                self._samples.append(self._ours.recv())
                self._began.set()
        except (EOFError, OSError):
            self._began.set()


def _make_steps(experiment: Experiment, batch: int, connection: Connection[Any, Any]) -> None:
    trainer = small_steps(experiment, batch)
    while not connection.poll(EVERY_S):
        began_s = time.process_time()
        trainer.run_batches(1)
        connection.send((time.monotonic(), max(time.process_time() - began_s, 1e-9)))


def small_steps(experiment: Experiment, batch: int) -> Trainer:
    """Returns a warm trainer whose steps take at most about STEP_S, or are of one example."""
    single = Trainer(experiment, 1, 1)
    single.run_batches(1)
    each_s = single.run_batches(WARM_STEPS) / WARM_STEPS
    single.close()
    trainer = Trainer(experiment, 1, min(max(int(STEP_S / each_s), 1), batch))
    trainer.run_batches(WARM_STEPS)
    return trainer
