"""Optimizers in the Python interface: `adamctl.SGD(0.05, weight_decay=1e-4)`, `adamctl.LBFGS(history=20)`."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, Unpack

from adamctl.config.experiment import OptimizerConfig, ScheduleConfig


class Settings(TypedDict, total=False):
    """Settings that every update rule takes besides its own; see `OptimizerConfig`."""

    weight_decay: float
    clip_norm: float | None
    schedule: ScheduleConfig | None


class BatchSettings(TypedDict, total=False):
    """Settings that every batch algorithm of ours takes besides its own; see `OptimizerConfig`.

    `weight_decay` is an L2 term here: the loss has weight_decay / 2 * |w|^2 more, and its gradient weight_decay * w.
    (In update rules it is decoupled from loss and gradient.)
    """

    weight_decay: float
    batch: int | Literal["full"]
    gradient_tolerance: float
    change_tolerance: float
    evaluations_max: int


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


def LBFGS(history: int = 10, **settings: Unpack[BatchSettings]) -> OptimizerConfig:  # noqa: N802
    """Returns L-BFGS over the whole training set (DistBelief 4.2, Sandblaster); `passes` is its budget of evaluations.

    Args:
        history: pairs of displacements and changes of the gradient, at most 31; each is 8 bytes a parameter.
        settings: see `BatchSettings`; `weight_decay` is an L2 term of loss and gradient.
    """
    return OptimizerConfig(type="lbfgs", history=history, **settings)


def CG(**settings: Unpack[BatchSettings]) -> OptimizerConfig:  # noqa: N802
    """Returns conjugate gradient over the whole training set: less memory than `LBFGS`, more evaluations.

    Args:
        settings: see `BatchSettings`; `weight_decay` is an L2 term of loss and gradient.
    """
    return OptimizerConfig(type="cg", **settings)


def OWLQN(  # noqa: N802
    l1: float, history: int = 10, **settings: Unpack[BatchSettings]
) -> OptimizerConfig:
    """Returns OWL-QN over the whole training set: L-BFGS for a loss with an L1 term, which makes parameters 0.

    Args:
        l1: factor of the sum of |w| in the loss, above 0.
        history: as of `LBFGS`.
        settings: see `BatchSettings`; `weight_decay` is an L2 term of loss and gradient, besides the L1 term.
    """
    return OptimizerConfig(type="owlqn", l1=l1, history=history, **settings)


def Optimizer(type: str, **settings: Any) -> OptimizerConfig:  # noqa: N802
    """Returns an optimizer by its type, such as a batch algorithm that an installed package adds.

    Args:
        settings: those that are keys of `[optimizer]` go there (`weight_decay` is an L2 term of loss and gradient under
            a batch algorithm), others to the algorithm's own, as in `[optimizer.settings]`. All are checked by `fit`,
            before anything starts.
    """
    keys = {name: settings[name] for name in settings if name in OptimizerConfig.__struct_fields__}
    others = {name: value for name, value in settings.items() if name not in keys}
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in others.items()}
    if own:
        keys["settings"] = own
    return OptimizerConfig(type=type, **keys)


def _optimizer(rule: str, lr: float, settings: Settings, **own: Any) -> OptimizerConfig:
    shared: dict[str, Any] = {**settings, "schedule": settings.get("schedule") or ScheduleConfig()}
    return OptimizerConfig(type=rule, lr=lr, **shared, **own)
