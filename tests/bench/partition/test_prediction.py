"""Predictions beside measurements: of the same replica on machines of the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import TCP_SHARE, Prediction
from adamctl.bench.partition.started import Kind
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.rates import Rate, Rates

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"
TWO = Kind(2, 1, 3, "tcp")


def _prediction(machines: Machines) -> Prediction:
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    kinds = {stage.kind for stage in plan_of(experiment, 2).stages} | {"conv2d+maxpool2d"}
    rates = Rates(1 << 20, 1 << 24, 1e9, tuple(Rate(kind, "", 1000, 32, 1e9) for kind in sorted(kinds)))
    return Prediction(experiment, rates, machines, 32)


def test_a_process_with_a_quota_takes_as_much_longer() -> None:
    whole, slow = (_prediction(Machines(quota_cores=quota)).price(Kind(1, 1, 0, "shared"), None) for quota in (1, 0.4))
    assert slow.interval_s == pytest.approx(whole.interval_s / 0.4)


def test_more_threads_than_cores_share_them() -> None:
    assert Machines().speed(4, 1, 2) == 0.5
    assert Machines().speed(2, 1, 2) == 1
    assert Machines(quota_cores=0.4).speed(2, 2, 4) == 0.2
    assert Machines(quota_cores=0.4).speed(4, 1, 1) == 0.25


def test_a_slow_link_binds_and_parameters_do_not_go_through_it() -> None:
    prediction = _prediction(Machines())
    fast, slow = prediction.price(TWO, None), prediction.price(TWO, 1e5)
    assert slow.binds.startswith("link of") and slow.server_bytes < 1
    assert slow.interval_s == pytest.approx(slow.link_bytes / (1e5 * TCP_SHARE))
    assert fast.interval_s < slow.interval_s


def test_a_row_has_the_measured_figure_over_the_predicted_one() -> None:
    prediction = _prediction(Machines())
    expected = prediction.price(TWO, None).examples_per_s
    row = prediction.row(TWO, None, 2 * expected)
    assert row["over_predicted"] == 2 and row["predicted_images_per_s"] == pytest.approx(expected, abs=0.01)
