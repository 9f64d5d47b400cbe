"""What every table of an experiment file is."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the experiment file; unknown keys are rejected."""
