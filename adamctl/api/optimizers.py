"""Optimizers as a user of the Python interface writes them: `adam.SGD(0.05)`."""

from __future__ import annotations

from adamctl.config.experiment import OptimizerConfig, ScheduleConfig


def Schedule(type: str = "constant", **settings: float | int) -> ScheduleConfig:  # noqa: N802
    """Returns a learning-rate schedule: constant, step, cosine or one_cycle; see `ScheduleConfig` for its settings."""
    return ScheduleConfig(type=type, **settings)  # type: ignore[arg-type]


def SGD(  # noqa: N802
    lr: float, *, weight_decay: float = 0.0, clip_norm: float | None = None, schedule: ScheduleConfig | None = None
) -> OptimizerConfig:
    """Returns stochastic gradient descent, w -= lr * g, on the servers."""
    return OptimizerConfig(
        type="sgd", lr=lr, weight_decay=weight_decay, clip_norm=clip_norm, schedule=schedule or ScheduleConfig()
    )


def Momentum(  # noqa: N802
    lr: float,
    momentum: float = 0.9,
    *,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    schedule: ScheduleConfig | None = None,
) -> OptimizerConfig:
    """Returns SGD with momentum, v = momentum * v + g; w -= lr * v, on the servers."""
    return OptimizerConfig(
        type="momentum",
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        schedule=schedule or ScheduleConfig(),
    )


def Adagrad(  # noqa: N802
    lr: float, *, weight_decay: float = 0.0, clip_norm: float | None = None, schedule: ScheduleConfig | None = None
) -> OptimizerConfig:
    """Returns Adagrad on the servers; `lr` is DistBelief's gamma (4.1)."""
    return OptimizerConfig(
        type="adagrad", lr=lr, weight_decay=weight_decay, clip_norm=clip_norm, schedule=schedule or ScheduleConfig()
    )
