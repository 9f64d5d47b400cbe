"""Batch algorithms are plug-ins: each is named by an entry point of the group `adamctl.optimizers`.

Another package adds `[optimizer] type = "mine"` by declaring

    [project.entry-points."adamctl.optimizers"]
    mine = "mypackage.module:ALGORITHM"

where ALGORITHM is a `BatchAlgorithm` (docs/algorithms.md); how its program is written is told in
`adamctl.optimizers.vectors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import msgspec

from adamctl.config.algorithms import ALGORITHMS, BUILT_IN
from adamctl.errors import ConfigurationError
from adamctl.optimizers.vectors import Program
from adamctl.wire.unreadable import UNREADABLE


@dataclass(frozen=True)
class BatchAlgorithm:
    """One batch algorithm.

    Attributes:
        summary: one line.
        program: a generator function of (vectors, settings, state).
        settings: a `msgspec.Struct` type, all fields with defaults. A field with the name of a key of `[optimizer]`,
            such as `history`, is that key, its default included; others are keys of `[optimizer.settings]`
            (`adamctl.optimizers.configured`).
    """

    summary: str
    program: Program
    settings: type[msgspec.Struct]

    def settings_of(self, keys: Mapping[str, Any]) -> msgspec.Struct:
        """Returns checked settings. Raises ConfigurationError if a key is unknown or its value is out of range."""
        try:
            return msgspec.convert(dict(keys), self.settings)
        except (*UNREADABLE, TypeError) as error:
            raise ConfigurationError(f"[optimizer]: {error}") from error


def find(name: str) -> BatchAlgorithm:
    """Returns an algorithm; built-in ones are found without searching the installed packages.

    Raises:
        ConfigurationError: there is none of this name, there are two, or it cannot be loaded.
    """
    if name in BUILT_IN:
        algorithm = import_module(f"adamctl.optimizers.{name}").ALGORITHM
        assert isinstance(algorithm, BatchAlgorithm)
        return algorithm
    found, point = ALGORITHMS.load(name)
    if not isinstance(found, BatchAlgorithm):
        raise ConfigurationError(f"entry point {name!r} ({point.value}) is not an {__name__}.BatchAlgorithm")
    if not (isinstance(found.settings, type) and issubclass(found.settings, msgspec.Struct)):
        raise ConfigurationError(f"optimizer {name!r} ({point.value}): its settings are no msgspec.Struct type")
    return found
