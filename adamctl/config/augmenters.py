"""What `[data.augment] use` may name: an augmenter that an installed package adds.

Augmenters are entry points of a group (`adamctl.roles.data.augment.plugins`). Here they are names alone: nothing of
them is loaded.
"""

from __future__ import annotations

from typing import Final

from adamctl.plugins import PluginGroup

AUGMENTERS: Final = PluginGroup("adamctl.augmenters", "data.augment.use", "an augmenter")


def augmenters() -> list[str]:
    """Returns the names of all augmenters."""
    return AUGMENTERS.names()
