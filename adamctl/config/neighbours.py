"""What the version before this one can read of an experiment (docs/upgrades.md).

Tables of an experiment refuse keys that they do not know. So what goes to other nodes, or into files that the version
before may open, leaves out the keys that are new in this version, as long as they have their defaults: who reads it
takes their absence for the same. An experiment that uses a new key needs this version everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.config.section import Section

NEW_KEYS: Final = ("data.targets", "data.columns.targets", "train.checkpoint_url")
"""Emptied after each release."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    field.name: msgspec.to_builtins(field.default)
    for field in msgspec.structs.fields(Experiment)
    if isinstance(field.default, Section)
}


def experiment_for_neighbours(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an experiment's plain values without the keys that are new and have their defaults."""
    for key in NEW_KEYS:
        values = _without(values, _DEFAULTS, key.split("."))
    return dict(values)


def data_for_neighbours(config: DataConfig) -> dict[str, Any]:
    """Returns the plain values of the table `data` likewise."""
    found: dict[str, Any] = experiment_for_neighbours({"data": msgspec.to_builtins(config)})["data"]
    return found


def _without(values: Mapping[str, Any], defaults: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    name, *rest = path
    if name not in values:
        return values
    if rest:
        return {**values, name: _without(values[name], defaults[name], rest)}
    return {key: value for key, value in values.items() if key != name or value != defaults[name]}
