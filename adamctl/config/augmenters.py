"""What `[data.augment] use` may name: an augmenter that an installed package adds.

Augmenters are entry points of a group (`adamctl.roles.data.augment.plugins`). Here they are names alone: nothing of
them is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP: Final = "adamctl.augmenters"


def augmenters() -> list[str]:
    """Returns the names of all augmenters."""
    return sorted({point.name for point in installed()})


def installed() -> EntryPoints:
    """Returns the entry points of augmenters in all installed packages; none is loaded."""
    from importlib.metadata import entry_points  # loads sockets, which programs do without

    return entry_points(group=GROUP)
