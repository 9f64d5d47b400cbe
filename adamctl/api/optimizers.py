"""Optimizers in the Python interface: `adamctl.SGD(0.05, weight_decay=1e-4)`."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

from adamctl.config.experiment import OptimizerConfig, ScheduleConfig


class Settings(TypedDict, total=False):
    """Settings that every optimizer takes besides its own; see `OptimizerConfig`."""

    weight_decay: float
    clip_norm: float | None
    schedule: ScheduleConfig | None


def Schedule(type: str = "constant", **settings: float | int) -> ScheduleConfig:  # noqa: N802
    """Returns a learning-rate schedule: constant, step, cosine or one_cycle; see `ScheduleConfig` for its settings."""
    return ScheduleConfig(type=type, **settings)  # type: ignore[arg-type]


def SGD(lr: float, **settings: Unpack[Settings]) -> OptimizerConfig:  # noqa: N802
    """Returns stochastic gradient descent, w -= lr * g, on the servers."""
    return _optimizer("sgd", lr, settings)


def Momentum(  # noqa: N802
    lr: float, momentum: float = 0.9, *, nesterov: bool = False, **settings: Unpack[Settings]
) -> OptimizerConfig:
    """Returns SGD with momentum, v = momentum * v + g; w -= lr * v, on the servers.

    With `nesterov` the step looks ahead: w -= lr * (g + momentum * v).
    """
    return _optimizer("momentum", lr, settings, momentum=momentum, nesterov=nesterov)


def Adagrad(lr: float, **settings: Unpack[Settings]) -> OptimizerConfig:  # noqa: N802
    """Returns Adagrad on the servers; `lr` is DistBelief's gamma (4.1)."""
    return _optimizer("adagrad", lr, settings)


def RMSProp(  # noqa: N802
    lr: float = 0.001, decay: float = 0.9, epsilon: float = 1e-8, **settings: Unpack[Settings]
) -> OptimizerConfig:
    """Returns RMSProp, a = decay * a + (1 - decay) * g^2; w -= lr * g / (sqrt(a) + epsilon), on the servers."""
    return _optimizer("rmsprop", lr, settings, decay=decay, epsilon=epsilon)


def Adam(  # noqa: N802
    lr: float = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    **settings: Unpack[Settings],
) -> OptimizerConfig:
    """Returns Adam with both bias corrections (Kingma and Ba 2015) on the servers; its weight decay is decoupled."""
    return _optimizer("adam", lr, settings, beta1=beta1, beta2=beta2, epsilon=epsilon)


def _optimizer(rule: str, lr: float, settings: Settings, **own: Any) -> OptimizerConfig:
    shared: dict[str, Any] = {**settings, "schedule": settings.get("schedule") or ScheduleConfig()}
    return OptimizerConfig(type=rule, lr=lr, **shared, **own)  # type: ignore[arg-type]
