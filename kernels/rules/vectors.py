"""The vectors of a batch algorithm as the state of a rule that takes no updates (DistBelief 4.2, 0032).

So they are made, shipped, stored, checkpointed and restored like any rule's state, under one version with the values.
"""

from __future__ import annotations

import re

from adamctl.errors import ConfigurationError
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.rule import Rule
from adamctl.model.commands import ACCUMULATOR, PARAMETERS
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.rule import VECTORS, RuleConfig

ACCUMULATOR_BYTES = 8
KEPT_MAX = 63
"""With the values they are as many arrays as a record of a shard may have."""
SCRATCH_MAX = 16
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


class Vectors(Rule):
    """Keeps vectors, all zero at first. State: those that are kept."""

    name = VECTORS

    def __init__(self, config: RuleConfig, backend: str | None = None) -> None:
        """Raises ConfigurationError if the vectors cannot have these names."""
        _check(config)
        self.config, self.backend, self._compiled, self._address = config, "numpy", None, None
        self.state_names = config.kept
        self.scratch_names = config.scratch
        self.scratch_bytes = len(config.scratch) * ELEMENT_BYTES + ACCUMULATOR_BYTES

    def _apply_numpy(
        self, weights_in: Array, weights_out: Array, state: list[Array], gradient: Array, numbers: tuple[float, ...]
    ) -> None:
        raise NotImplementedError("commands change vectors, updates do not")

    _apply_numexpr = _apply_numpy


def _check(config: RuleConfig) -> None:
    names = (*config.kept, *config.scratch)
    for what, found, most in (("kept", config.kept, KEPT_MAX), ("scratch", config.scratch, SCRATCH_MAX)):
        if len(found) > most:
            raise ConfigurationError(f"rule.{what}: expected at most {most} vectors; found {len(found)}")
    for name in names:
        if not _NAME.fullmatch(name) or name in (PARAMETERS, ACCUMULATOR):
            raise ConfigurationError(
                f"rule.kept, rule.scratch: expected names of up to 32 lower-case letters, digits and _, other than "
                f"{PARAMETERS} and {ACCUMULATOR}; found {name!r}"
            )
    if len(set(names)) != len(names):
        raise ConfigurationError(f"rule.kept, rule.scratch: expected different names; found {', '.join(names)}")
