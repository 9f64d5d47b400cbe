"""Numbers that a user gives for classes, by name or in order: how much each weighs in the loss or in a pass. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, Literal, TypeAlias

from adamctl.config.check import suggestion
from adamctl.errors import ConfigurationError

NAMES_SHOWN_MAX: Final = 20
ClassWeights: TypeAlias = Literal["none", "balanced"] | tuple[float, ...] | Mapping[str, float]


def of_classes(given: Mapping[str, float], classes: Sequence[str], key: str, default: float) -> list[float]:
    """Returns a number for each class: the one given by its name, or else the default.

    Raises:
        ConfigurationError: there is no class of a given name.
    """
    values = [default] * len(classes)
    places = {name: place for place, name in enumerate(classes)}
    for name, value in given.items():
        if name not in places:
            shown = ", ".join(classes[:NAMES_SHOWN_MAX])
            shown += f" and {len(classes) - NAMES_SHOWN_MAX} more" if len(classes) > NAMES_SHOWN_MAX else ""
            near = suggestion(name, classes)
            raise ConfigurationError(f'{key}: there is no class "{name}"; expected one of {shown}.{near}')
        values[places[name]] = value
    return values


def class_weights(
    given: ClassWeights, classes: Sequence[str], examples: Sequence[int], outputs: int
) -> list[float] | None:
    """Returns the factor of the loss of each output's class, [outputs]; None if all are 1 (`train.class_weights`).

    Their mean over the training examples is 1, so that the loss and its gradient are as large as without. `balanced`:
    the classes that have training examples add up to the same (King, Zeng 2001, 4.1, with equal shares).

    Args:
        classes: their names, at most `outputs`.
        examples: how many training examples each has.
        outputs: units of the last layer; those beyond the classes get 1.

    Raises:
        ConfigurationError: there are no classes, or not that one, or not one number for each; or none that counts is
            above 0.
    """
    if given == "none":
        return None
    if not classes:
        raise ConfigurationError(
            "train.class_weights: these examples have targets, numbers in place of classes: leave it out"
        )
    if given == "balanced":
        weights = [1 / count if count else 0.0 for count in examples]
    elif isinstance(given, Mapping):
        weights = of_classes(given, classes, "train.class_weights", 1.0)
    else:
        if len(given) != len(classes):
            raise ConfigurationError(
                f"train.class_weights: found {len(given)} numbers; expected one for each of {len(classes)} classes"
            )
        weights = list(given)
    total = sum(weight * count for weight, count in zip(weights, examples, strict=True))
    if not (total > 0 and isfinite(total)):
        raise ConfigurationError(
            "train.class_weights: expected a number above 0 for a class that has training examples; "
            f"found none among {', '.join(f'{weight:g}' for weight in weights[:NAMES_SHOWN_MAX])}"
        )
    factor = sum(examples) / total
    return [weight * factor for weight in weights] + [1.0] * (outputs - len(classes))
