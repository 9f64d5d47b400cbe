"""Predictions beside measurements: of the same replica on machines of the same kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.partition.machines import Machines
from adamctl.bench.partition.prediction import TCP, TCP_SHARE, Prediction
from adamctl.bench.partition.started import Kind
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.partition.cost import exchanges
from adamctl.model.partition.rates import Rate, Rates

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"
TWO = Kind(2, 1, 3, "tcp")


def _prediction(machines: Machines, amount_per_s: float = 1e9) -> Prediction:
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    kinds = {stage.kind for stage in plan_of(experiment, 2).stages} | {"conv2d+maxpool2d"}
    rates = Rates(1 << 20, 1 << 24, 1e9, tuple(Rate(kind, "", 1000, 32, amount_per_s) for kind in sorted(kinds)))
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


def test_a_small_network_on_a_share_of_a_core_waits_no_period_for_each_block() -> None:
    machines = Machines(quota_cores=0.4)
    prediction = _prediction(machines, amount_per_s=1e11)
    plan = plan_of(load_experiment(EXAMPLES / "digits.toml").experiment, 2)
    waits, found = len(exchanges(plan, 32)), prediction.price(TWO, None)
    assert max(found.compute_s) < 0.005  # less than one period for all blocks of a flight
    assert found.flight_s < waits * machines.idle_s() / 2
    slow = _prediction(machines, amount_per_s=1e6).conditions(TWO, None)
    assert slow.link.latency_s == pytest.approx(machines.idle_s())


def test_the_event_loops_time_for_a_block_is_taken_from_the_share() -> None:
    whole, part = (_prediction(Machines(quota_cores=quota)).conditions(TWO, None).link for quota in (1, 0.4))
    assert whole == TCP
    assert 2 * part.processor_s_per_block == pytest.approx(TCP.latency_s / 0.4)
    alone = _prediction(Machines(quota_cores=0.4)).conditions(Kind(1, 1, 0, "tcp"), None).link
    assert alone.latency_s == TCP.latency_s + Machines(quota_cores=0.4).idle_s()


def test_a_row_has_the_measured_figure_over_the_predicted_one() -> None:
    prediction = _prediction(Machines())
    expected = prediction.price(TWO, None).examples_per_s
    row = prediction.row(TWO, None, 2 * expected)
    assert row["over_predicted"] == 2 and row["predicted_images_per_s"] == pytest.approx(expected, abs=0.01)
