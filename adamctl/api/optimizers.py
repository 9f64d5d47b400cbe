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
    nesterov: bool = False,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    schedule: ScheduleConfig | None = None,
) -> OptimizerConfig:
    """Returns SGD with momentum, v = momentum * v + g; w -= lr * v, on the servers.

    With `nesterov` the step looks ahead: w -= lr * (g + momentum * v).
    """
    return OptimizerConfig(
        type="momentum",
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
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


def RMSProp(  # noqa: N802
    lr: float = 0.001,
    decay: float = 0.9,
    epsilon: float = 1e-8,
    *,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    schedule: ScheduleConfig | None = None,
) -> OptimizerConfig:
    """Returns RMSProp, a = decay * a + (1 - decay) * g^2; w -= lr * g / (sqrt(a) + epsilon), on the servers."""
    return OptimizerConfig(
        type="rmsprop",
        lr=lr,
        decay=decay,
        epsilon=epsilon,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        schedule=schedule or ScheduleConfig(),
    )


def Adam(  # noqa: N802
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    *,
    weight_decay: float = 0.0,
    clip_norm: float | None = None,
    schedule: ScheduleConfig | None = None,
) -> OptimizerConfig:
    """Returns Adam with both bias corrections (Kingma and Ba 2015) on the servers; its weight decay is decoupled."""
    return OptimizerConfig(
        type="adam",
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        weight_decay=weight_decay,
        clip_norm=clip_norm,
        schedule=schedule or ScheduleConfig(),
    )
