"""What every table of an experiment file is, and what other packages' settings may be."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

Plain: TypeAlias = bool | int | float | str
SettingValue: TypeAlias = Plain | tuple[Plain, ...]
"""What a setting of another package's algorithm or augmenter may be."""


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the experiment file; unknown keys are rejected."""
