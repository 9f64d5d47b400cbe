"""Which update rule the servers of a job run, and its constants."""

from __future__ import annotations

import msgspec

RULE_NAMES = ("add", "sgd", "momentum", "adagrad")


class RuleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule by name and its settings, the same for all shards of a job.

    `weight_decay` is decoupled from the gradient: each application also subtracts lr * weight_decay * w. `momentum`
    and `nesterov` are read by the momentum rule only.
    """

    name: str
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
