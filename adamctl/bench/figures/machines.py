"""Emulated machines: the processes of roles with shares of cores; and how much else this machine has to do."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from adamctl.bench.control_groups import CORES_LEAST, ControlGroups, control_groups
from adamctl.errors import ConfigurationError

CORES_MOST = 1.8
"""Of all emulated machines and what is beside them."""
BESIDE_CORES = 0.3
"""That data servers, coordinator and controllers share."""
LOAD_MOST = 3.0
"""Above it, times mean little."""


@contextmanager
def core_shares() -> Iterator[ControlGroups]:
    """Yields control groups for shares of cores, and removes them.

    Raises:
        ConfigurationError: none can be made here.
    """
    with control_groups("cpu") as groups:
        if groups is None:
            raise ConfigurationError(
                "emulated machines: expected a control group for processor time that this user may write to (cgroup v1 "
                "cpu, or v2); found none: run as a user who may, in a container with its own groups mounted to write"
            )
        yield groups


def check_core_shares() -> None:
    """Raises ConfigurationError: no control groups can be made here, which should be known before an hour of work."""
    with core_shares():
        pass


def check_machines(cores: Mapping[str, float], beside_cores: float = BESIDE_CORES) -> None:
    """Checks what machines have of this one's cores.

    Args:
        cores: of each machine, by node.

    Raises:
        ConfigurationError: one has less than a control group can give, or all together have more than CORES_MOST.
    """
    small = [node for node, share in cores.items() if share < CORES_LEAST]
    if small:
        raise ConfigurationError(
            f"{small[0]}: expected at least {CORES_LEAST:g} of a core; found {cores[small[0]]:g}: fewer machines"
        )
    total = sum(cores.values()) + beside_cores
    if total > CORES_MOST + 1e-9:
        raise ConfigurationError(
            f"expected machines with {CORES_MOST:g} cores together; found {total:g}: {len(cores)} machines and "
            f"{beside_cores:g} for what is beside them; give each less"
        )


def load_1_minute() -> float:
    return round(os.getloadavg()[0], 2)


def said_of_load(load: float) -> str:
    """Returns the load before a figure, in words."""
    text = f"load before it: {load:.1f}"
    return f"{text}, above {LOAD_MOST:g}, so its times mean little" if load > LOAD_MOST else text
