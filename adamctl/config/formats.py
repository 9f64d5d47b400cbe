"""What `[data] format` may be: a reader of ours, or one that an installed package adds, by name.

Readers are entry points of a group that other packages may add to (`adamctl.roles.data.readers.plugins`). Here they
are names alone: nothing of them is loaded, and installed packages are searched only for a name that is not ours.
"""

from __future__ import annotations

from typing import Final

from adamctl.plugins import PluginGroup

BUILT_IN: Final = (
    "digits",
    "idx",
    "npz",
    "npy",
    "csv",
    "parquet",
    "prepared",
    "imagefolder",
    "tar",
    "audio",
)
"""Formats that come with adamctl."""
READERS: Final = PluginGroup("adamctl.readers", "data.format", "a data format", BUILT_IN)


def is_format(name: str) -> bool:
    """Returns whether there is a reader of this format."""
    return READERS.has(name)


def formats() -> list[str]:
    """Returns the names of all formats, ours first. An entry point of another package with one of ours is not used."""
    return READERS.names()
