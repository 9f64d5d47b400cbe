"""A process says how fast this machine is, while something else is measured."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adamctl.bench.speed_probe import EVERY_S, SpeedProbe, small_steps
from adamctl.config.load import load_experiment
from adamctl.errors import RunFailedError

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def test_steps_are_made_while_it_is_open() -> None:
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    began_s = time.monotonic()
    with SpeedProbe(experiment, 16) as probe:
        first_s = time.monotonic()
        until_s = first_s + 60.0
        while len(probe._samples) < 4 and time.monotonic() < until_s:
            time.sleep(EVERY_S)
        whole = probe.speed(began_s, time.monotonic())
        assert whole > 0 and len(probe._samples) >= 4
        with pytest.raises(RunFailedError, match="no step says how fast this machine was"):
            probe.speed(began_s - 2.0, began_s)
    assert not probe._process.is_alive() and not probe._reader.is_alive()


@pytest.mark.parametrize(("most", "expected"), [(2, range(1, 3)), (4096, range(1, 2048))])
def test_steps_are_as_large_as_the_time_for_them(most: int, expected: range) -> None:
    trainer = small_steps(load_experiment(EXAMPLES / "digits.toml").experiment, most)
    trainer.close()
    assert trainer.batch in expected


def test_the_speed_is_the_mean_of_a_period() -> None:
    probe = SpeedProbe.__new__(SpeedProbe)
    probe._samples = [(1.0, 0.5), (2.0, 0.25), (3.0, 0.1)]
    assert probe.speed(0.5, 2.5) == 3.0 and probe.speed(3.0, 3.0) == pytest.approx(10.0)
