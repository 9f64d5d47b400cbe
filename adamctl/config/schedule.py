"""Learning-rate schedules: pure functions of the share of the run that is done."""

from __future__ import annotations

from math import cos, floor, pi

from adamctl.config.experiment import ScheduleConfig


def learning_rate(lr: float, schedule: ScheduleConfig, progress: float) -> float:
    """Returns the learning rate at `progress`, the share of the run's examples handed out so far (clamped to 0..1).

    Cosine: Loshchilov and Hutter 2017, eq. 5 without restarts. One-cycle: Smith and Topin 2018, with cosine arms.
    """
    progress = min(max(progress, 0.0), 1.0)
    warmup = schedule.warmup
    if schedule.type == "one_cycle":
        rise = warmup if warmup > 0 else 0.3
        if progress < rise:
            return lr * _between(schedule.initial, 1.0, progress / rise)
        return lr * _between(1.0, schedule.final, (progress - rise) / (1 - rise))
    if progress < warmup:
        return lr * progress / warmup
    if schedule.type == "step":
        return float(lr * schedule.factor ** min(floor(progress * schedule.every), schedule.every - 1))
    if schedule.type == "cosine":
        return lr * _between(1.0, schedule.final, (progress - warmup) / (1 - warmup) if warmup < 1 else 1.0)
    return lr


def _between(start: float, stop: float, share: float) -> float:
    """Half a cosine wave from `start` at share 0 to `stop` at share 1."""
    return stop + (start - stop) * (1 + cos(pi * share)) / 2
