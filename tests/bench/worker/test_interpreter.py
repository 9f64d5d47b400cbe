"""The share of steps that holds the interpreter lock: measured at all, and what is made of it."""

from __future__ import annotations

import pytest

from adamctl.bench.worker.interpreter import InterpreterShare, interpreter_share
from adamctl.config.load import load_experiment
from adamctl.kernels import native
from adamctl.kernels.backend import installed
from adamctl.kernels.blas import blas


@pytest.mark.skipif("numba" not in installed(), reason="the observer is compiled")
def test_a_share_is_measured_while_threads_train() -> None:
    experiment = load_experiment("examples/digits.toml").experiment
    share = interpreter_share(experiment, batch=16, threads=2, seconds=0.3, rounds=1)
    assert share.looks > 10
    assert 0 <= share.held <= 1
    assert share.step_us > 0
    assert share.is_native == (native.can_compile() and blas() is not None)
    assert share.per_step_us == pytest.approx(share.held * share.step_us / 2)


def test_threads_without_a_lock_scale_and_threads_that_always_hold_it_do_not() -> None:
    free = InterpreterShare(1, 32, 0.0, 0.0, 1000.0, 100, True)
    assert free.speed_up(1) == pytest.approx(1)
    assert free.speed_up(16) == pytest.approx(16)
    stuck = InterpreterShare(1, 32, 1.0, 1000.0, 1000.0, 100, True)
    assert stuck.speed_up(16) == pytest.approx(1)


def test_a_tenth_that_holds_the_lock_bounds_the_speed_up_at_ten() -> None:
    share = InterpreterShare(1, 32, 0.1, 100.0, 1000.0, 100, True)
    assert 1.9 < share.speed_up(2) < 2
    assert 8 < share.speed_up(16) < 10
    assert share.speed_up(1000) == pytest.approx(10, rel=0.01)
