"""Accuracy over time: when a curve gets where, and the mean of several."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.curves import Curve, Moment, band, curve_of, from_json, to_json


def test_a_target_is_reached_between_two_evaluations_for_the_first_time() -> None:
    curve = Curve((Moment(10, 0.8), Moment(20, 0.92), Moment(30, 0.7), Moment(40, 0.95)), (), 60)
    assert curve.seconds_to(0.9) == pytest.approx(10 + 10 * 0.1 / 0.12)
    assert curve.seconds_to(0.95) == 40 and curve.seconds_to(0.8) == 10 and curve.seconds_to(0.5) == 10
    assert curve.seconds_to(0.96) is None and curve.seconds_or_limit(0.96) == 60


def test_a_run_without_an_evaluation_counts_with_its_whole_time() -> None:
    assert Curve((), (), 60, "diverged").seconds_or_limit(0.9) == 60


def test_a_curve_has_the_time_of_its_warm_start() -> None:
    found = {
        "evaluations": [{"train_seconds": 2.0, "top1": 0.5}, {"train_seconds": 4.0, "top1": None}],
        "progress": [
            {"train_seconds": 0.0, "train_top1": None},
            {"train_seconds": 3.0, "train_top1": 0.6},
            {"train_seconds": 3.0, "train_top1": 0.7},
            {"train_seconds": 3.5},
        ],
    }
    curve = curve_of(found, 20.0, 210.0, "time")
    assert curve.tested == (Moment(22.0, 0.5), Moment(24.0, 0.0)) and curve.trained == (Moment(23.0, 0.7),)
    assert from_json(to_json(curve)) == curve


def test_a_band_is_where_all_curves_are() -> None:
    one, other = (Moment(0, 0.0), Moment(10, 1.0)), (Moment(5, 0.0), Moment(15, 0.5))
    points = band([one, other, ()])
    assert (points[0].x, points[-1].x) == (5, 10)
    assert (points[0].y, points[0].low, points[0].high) == (0.25, 0.0, 0.5)
    assert points[-1].y == pytest.approx(0.625) and points[-1].low == pytest.approx(0.25) and points[-1].high == 1.0


def test_curves_that_are_never_at_the_same_time_have_no_band() -> None:
    assert band([(Moment(0, 0.1), Moment(1, 0.2)), (Moment(2, 0.1),)]) == () and band([()]) == ()
    assert [point.y for point in band([(Moment(3, 0.4),)])] == [0.4]
