"""What `[data] format` may be: a reader of ours, or one that an installed package adds, by name.

Readers are entry points of a group that other packages may add to (`adamctl.roles.data.readers.plugins`). Here they
are names alone: nothing of them is loaded, and installed packages are searched only for a name that is not ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP: Final = "adamctl.readers"
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


def is_format(name: str) -> bool:
    """Returns whether there is a reader of this format."""
    return name in BUILT_IN or any(point.name == name for point in installed())


def formats() -> list[str]:
    """Returns the names of all formats, ours first. An entry point of another package with one of ours is not used."""
    return [*BUILT_IN, *sorted({point.name for point in installed()} - set(BUILT_IN))]


def installed() -> EntryPoints:
    """Returns the entry points of readers in all installed packages, ours included; none is loaded."""
    from importlib.metadata import entry_points  # loads sockets, which programs do without

    return entry_points(group=GROUP)
