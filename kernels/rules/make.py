"""Builds a rule from its configuration."""

from __future__ import annotations

from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import load_if_compiled
from adamctl.kernels.needed import rule_kernels
from adamctl.kernels.rules.adagrad import Adagrad
from adamctl.kernels.rules.adam import Adam
from adamctl.kernels.rules.add import Add
from adamctl.kernels.rules.momentum import Momentum
from adamctl.kernels.rules.rmsprop import RMSProp
from adamctl.kernels.rules.rule import Rule
from adamctl.kernels.rules.sgd import Sgd
from adamctl.kernels.rules.vectors import Vectors
from adamctl.model.rule import VECTORS, RuleConfig

RULES: dict[str, type[Rule]] = {rule.name: rule for rule in (Add, Sgd, Momentum, Adagrad, RMSProp, Adam)}


def load_rule(config: RuleConfig) -> None:
    """Loads the kernels of a rule, or compiles them on a machine's first use; does nothing for an unknown rule."""
    if config.name in RULES or config.name == VECTORS:
        load_if_compiled(rule_kernels(config))


def make_rule(config: RuleConfig, backend: str | None = None) -> Rule:
    """Returns the rule that a job uses.

    Raises:
        ConfigurationError: no rule has that name, a setting is out of range, or vectors cannot have these names.
    """
    if config.name == VECTORS:
        return Vectors(config, backend)
    if config.name not in RULES:
        raise ConfigurationError(f"rule.name: expected one of {', '.join(sorted(RULES))}; found {config.name!r}")
    for key in ("momentum", "beta1", "beta2", "decay"):
        value = getattr(config, key)
        if not 0 <= value < 1:
            raise ConfigurationError(f"rule.{key}: expected at least 0 and below 1; found {value}")
    if config.epsilon <= 0:
        raise ConfigurationError(f"rule.epsilon: expected above 0; found {config.epsilon}")
    if config.weight_decay < 0:
        raise ConfigurationError(f"rule.weight_decay: expected at least 0; found {config.weight_decay}")
    return RULES[config.name](config, backend)
