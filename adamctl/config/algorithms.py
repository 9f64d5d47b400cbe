"""What `[optimizer] type` may be: an update rule of the servers, or a batch algorithm by name.

Batch algorithms are entry points of a group that other packages may add to (`adamctl.optimizers.registry`). Here they
are names alone: nothing of them is loaded, and installed packages are searched only for a name that is not ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from adamctl.model.commands import OPERANDS_MAX

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

RULES: Final = ("sgd", "momentum", "adagrad", "rmsprop", "adam")
"""Update rules: servers apply one whenever a gradient is pushed."""
GROUP: Final = "adamctl.optimizers"
BUILT_IN: Final = ("lbfgs", "cg", "owlqn")
"""Batch algorithms that come with adamctl."""
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
    return not is_of_another_package(name) or any(point.name == name for point in installed())


def types() -> list[str]:
    """Returns all types of optimizers, ours first."""
    return [*RULES, *algorithm_names()]


def algorithm_names() -> list[str]:
    """Returns the names of all batch algorithms, ours first. An entry point with a rule's name is never used."""
    return [*BUILT_IN, *sorted({point.name for point in installed()} - {*BUILT_IN, *RULES})]


def installed() -> EntryPoints:
    """Returns the entry points of batch algorithms in all installed packages, ours included; none is loaded."""
    from importlib.metadata import entry_points  # loads sockets, which programs do without

    return entry_points(group=GROUP)
