"""Which update rule a job's servers run, and its constants."""

from __future__ import annotations

from typing import Literal

import msgspec


class RuleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A server-side rule. The learning rate is not here: it travels with each push.

    Attributes:
        name: `add` applies deltas; `sgd`, `momentum` and `adagrad` (DistBelief 4.1) take gradients.
        momentum: v = momentum * v + g; w -= lr * v.
        weight_decay: decoupled, w -= lr * weight_decay * w with each update.
    """

    name: Literal["add", "sgd", "momentum", "adagrad"] = "sgd"
    momentum: float = 0.9
    weight_decay: float = 0.0
