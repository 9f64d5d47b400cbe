"""Rates of emulated machines: of their parts, and of a worker as a run has measured it."""

from __future__ import annotations

import os
import threading
import time

import msgspec
import pytest

from adamctl.bench.figures import cluster_rates
from adamctl.bench.figures.adam.figure_11 import experiment
from adamctl.bench.figures.cluster_prediction import bytes_of_a_batch, predicted
from adamctl.bench.figures.cluster_rates import ALONE, Calibrated, Taken
from adamctl.bench.partition.prediction import TCP
from adamctl.cli.model.scaling_figures import training_of
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.rates import Rates, computing
from tests.bench.figures.adam.test_figure_11 import SERVING, rates

QUOTA = 0.4


def compute_s(found: Rates) -> float:
    """Returns the time of a whole replica's batch."""
    trained = experiment()
    return computing(
        plan_of(trained, 1), 0, found, trained.train.batch, training_of(trained, TCP).conditions.pushing
    ).total_s  # fmt: skip


def test_a_machine_that_is_twice_as_fast_does_everything_in_half_the_time() -> None:
    once = Calibrated(rates(), SERVING, 10.0, 2e-9)
    twice = once.at(20.0)
    assert compute_s(twice.rates) == pytest.approx(compute_s(once.rates) / 2)
    assert twice.serving == msgspec.structs.replace(SERVING, apply_per_s=2e9, apply_more_per_s=4e9, products_per_s=60e9)
    assert (twice.speed, twice.processor_s_per_byte) == (20.0, 1e-9)
    assert twice.at(10.0).serving == once.serving


def test_a_replica_is_planned_to_take_what_its_worker_took() -> None:
    trained = experiment()
    batch, taken = trained.train.batch, Taken(loop_s=2e-4, compute_s=5e-3)
    found = Calibrated(rates(), SERVING, 10.0).with_worker(trained, batch, taken)
    assert compute_s(found.rates) == pytest.approx(5e-3 * batch)
    assert found.processor_s_per_byte * bytes_of_a_batch(trained) == pytest.approx(2e-4 * batch)
    images_per_s, binds = predicted(
        trained, ALONE, found.rates, found.serving, QUOTA, None, processor_s_per_byte=found.processor_s_per_byte
    )
    assert binds == "compute"
    assert images_per_s == pytest.approx(QUOTA / sum(taken), rel=0.02)


def test_medians_are_of_each_rate() -> None:
    speeds = (0.5, 1.0, 4.0)
    found = cluster_rates._median([Calibrated(rates(), SERVING, 10.0).at(10.0 * one) for one in speeds])
    assert found.rates == rates() and found.serving == SERVING


def test_a_process_has_taken_what_its_loop_and_its_other_threads_have() -> None:
    began = cluster_rates._threads_s(os.getpid())
    stop = threading.Event()

    def spin() -> None:
        until_s = time.thread_time() + 0.3
        while time.thread_time() < until_s and not stop.is_set():
            pass
        stop.wait(60.0)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        until_s = time.monotonic() + 60.0
        while cluster_rates._threads_s(os.getpid())[1] < began[1] + 0.2 and time.monotonic() < until_s:
            time.sleep(0.02)
        loop_s, others_s = cluster_rates._threads_s(os.getpid())
        assert others_s >= began[1] + 0.2 and loop_s >= began[0]
    finally:
        stop.set()
        thread.join()
