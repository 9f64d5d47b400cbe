"""What `[optimizer] type` may be: an update rule of the servers, or a batch algorithm by name.

Batch algorithms are entry points of a group that other packages may add to (`adamctl.optimizers.registry`). Here they
are names alone: nothing of them is loaded, and installed packages are searched only for a name that is not ours.
"""

from __future__ import annotations

from typing import Final

from adamctl.model.commands import OPERANDS_MAX
from adamctl.plugins import PluginGroup

RULES: Final = ("sgd", "momentum", "adagrad", "rmsprop", "adam")
"""Update rules: servers apply one whenever a gradient is pushed."""
BUILT_IN: Final = ("lbfgs", "cg", "owlqn")
"""Batch algorithms that come with adamctl."""
ALGORITHMS: Final = PluginGroup("adamctl.optimizers", "optimizer", "an optimizer", BUILT_IN, reserved=RULES)
"""An entry point with the name of a rule is never used."""
WITH_PAIRS: Final = ("lbfgs", "owlqn")
"""Those that keep pairs of displacements and changes of the gradient."""
HISTORY_MAX: Final = (OPERANDS_MAX - 1) // 2
"""Most pairs of vectors that an algorithm keeps: a direction is one combination of them all and the gradient."""


def is_batch_algorithm(name: str) -> bool:
    """Returns whether a type of optimizer is a batch algorithm, if there is such a type at all."""
    return name not in RULES


def is_of_another_package(name: str) -> bool:
    """Returns whether a type of optimizer comes from another package, if there is such a type at all."""
    return name not in RULES and name not in BUILT_IN


def is_type(name: str) -> bool:
    """Returns whether there is an optimizer of this type."""
    return name in RULES or ALGORITHMS.has(name)


def types() -> list[str]:
    """Returns all types of optimizers, ours first."""
    return [*RULES, *algorithm_names()]


def algorithm_names() -> list[str]:
    """Returns the names of all batch algorithms, ours first."""
    return ALGORITHMS.names()
