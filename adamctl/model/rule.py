"""The update rule that the servers of a job run, and its constants."""

from __future__ import annotations

import msgspec

RULE_NAMES = ("add", "sgd", "momentum", "adagrad", "rmsprop", "adam")
VECTORS = "vectors"
"""The name of what takes no updates: a batch algorithm's vectors, which commands change (0032)."""


class RuleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule by name and its settings, the same for all shards of a job.

    `weight_decay` is decoupled from the gradient: each update also subtracts lr * weight_decay * w. Only the momentum
    rule uses `momentum` and `nesterov`, rmsprop `decay`, adam `beta1` and `beta2`, and the last two `epsilon`.

    `kept` and `scratch` name the vectors of the rule `vectors`, besides the parameters `x`: those that are part of the
    state of a shard, and those that are lost with the server that holds them.
    """

    name: str
    momentum: float = 0.9
    weight_decay: float = 0.0
    nesterov: bool = False
    decay: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    kept: tuple[str, ...] = ()
    scratch: tuple[str, ...] = ()
