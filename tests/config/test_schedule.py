"""Learning-rate schedules: where they start, peak and end, and that they never leave their bounds."""

from __future__ import annotations

from math import pi, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.config.experiment import ScheduleConfig
from adamctl.config.schedule import learning_rate

TYPES = ("constant", "step", "cosine", "one_cycle")
schedules = st.builds(
    ScheduleConfig,
    type=st.sampled_from(TYPES),
    warmup=st.floats(0.0, 0.9),
    factor=st.floats(0.01, 1.0),
    every=st.integers(1, 10),
    initial=st.floats(0.0, 1.0),
    final=st.floats(0.0, 1.0),
)


def test_constant_stays() -> None:
    assert {learning_rate(0.1, ScheduleConfig(), share / 10) for share in range(11)} == {0.1}


def test_step_multiplies_by_the_factor_at_each_of_equal_parts() -> None:
    schedule = ScheduleConfig(type="step", factor=0.5, every=4)
    rates = [learning_rate(1.0, schedule, progress) for progress in (0.0, 0.2, 0.25, 0.5, 0.75, 0.99, 1.0)]
    assert rates == [1.0, 1.0, 0.5, 0.25, 0.125, 0.125, 0.125]


def test_loshchilov_hutter_equation_5_half_a_cosine_down() -> None:
    schedule = ScheduleConfig(type="cosine", final=0.1)
    assert learning_rate(1.0, schedule, 0.0) == pytest.approx(1.0)
    assert learning_rate(1.0, schedule, 0.5) == pytest.approx(0.55)
    assert learning_rate(1.0, schedule, 0.25) == pytest.approx(0.1 + 0.9 * (1 + sin(pi / 4)) / 2)
    assert learning_rate(1.0, schedule, 1.0) == pytest.approx(0.1)


def test_one_cycle_rises_to_the_peak_and_ends_at_its_final_factor() -> None:
    schedule = ScheduleConfig(type="one_cycle", warmup=0.2, initial=0.1, final=0.01)
    assert learning_rate(2.0, schedule, 0.0) == pytest.approx(0.2)
    assert learning_rate(2.0, schedule, 0.2) == pytest.approx(2.0)
    assert learning_rate(2.0, schedule, 1.0) == pytest.approx(0.02)
    without = ScheduleConfig(type="one_cycle")
    assert learning_rate(2.0, without, 0.3) == pytest.approx(2.0), "the peak is at 0.3 unless warmup says otherwise"


@pytest.mark.parametrize("kind", ["constant", "step", "cosine"])
def test_warm_up_is_a_straight_line_from_zero(kind: str) -> None:
    schedule = ScheduleConfig(type=kind, warmup=0.2)  # type: ignore[arg-type]
    rates = [learning_rate(1.0, schedule, progress) for progress in (0.0, 0.05, 0.1, 0.15)]
    assert rates == pytest.approx([0.0, 0.25, 0.5, 0.75])


@given(schedules, st.floats(-1.0, 2.0), st.floats(1e-6, 10.0))
def test_never_negative_never_above_lr_and_clamped_outside_the_run(
    schedule: ScheduleConfig, progress: float, lr: float
) -> None:
    rate = learning_rate(lr, schedule, progress)
    assert 0.0 <= rate <= lr * (1 + 1e-9)
    assert rate == learning_rate(lr, schedule, min(max(progress, 0.0), 1.0))


@given(schedules, st.floats(0.0, 1.0), st.floats(1e-3, 10.0))
def test_proportional_to_lr(schedule: ScheduleConfig, progress: float, lr: float) -> None:
    assert learning_rate(lr, schedule, progress) == pytest.approx(lr * learning_rate(1.0, schedule, progress))


@given(schedules, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_after_the_rise_it_never_goes_up_again(schedule: ScheduleConfig, one: float, other: float) -> None:
    rise = schedule.warmup or (0.3 if schedule.type == "one_cycle" else 0.0)
    early, late = sorted((rise + one * (1 - rise), rise + other * (1 - rise)))
    assert learning_rate(1.0, schedule, late) <= learning_rate(1.0, schedule, early) + 1e-9
