"""Emulated machines: the processes of roles with shares of cores; and how much else this machine has to do."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path

from adamctl.bench.control_groups import CORES_LEAST, ControlGroups, quotas
from adamctl.bench.figures.paper_machines import Core, operations_per_cycle
from adamctl.bench.kernels.measuring import product_limit
from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import installed

CORES_MOST = 1.8
"""Of all emulated machines and what is beside them."""
BESIDE_CORES = 0.3
"""That data servers, coordinator and controllers share."""
LOAD_MOST = 3.0
"""Above it, times mean little."""
CPU_INFO = Path("/proc/cpuinfo")
PRODUCT_S, PRODUCT_ROUNDS = 0.3, 5
CHAINS, CHAIN_TURNS, CHAIN_CYCLES = 20, 2_000_000, 6
"""Chains, turns of each, and cycles of a turn: three shifts and three exclusive ors, each on what came before."""


def core_shares() -> AbstractContextManager[ControlGroups]:
    """Returns a context with control groups for shares of cores, which removes them.

    Raises:
        ConfigurationError: on entering, none can be made here.
    """
    return quotas("emulated machines", "run as a user who may, in a container with its own groups mounted to write")


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


def core_here() -> Core:
    """Returns what a core of this machine is and does: its clock and its rate of matrix products, as measured now."""
    text = CPU_INFO.read_text(encoding="utf-8") if CPU_INFO.is_file() else ""
    found = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text, re.MULTILINE))
    vendor, family = found.get("vendor_id", ""), int(found.get("cpu family", 0))
    operations = operations_per_cycle(found.get("flags", "").split(), vendor, family)
    limit = product_limit(1)
    product_per_s = max(limit.measure(PRODUCT_S) for _ in range(PRODUCT_ROUNDS))
    return Core(measured_clock_hz() or 1e6 * float(found.get("cpu MHz", 0)), operations, product_per_s)


def measured_clock_hz() -> float:
    """Returns cycles per second of a core at work, by a chain of operations that take one each; 0 without numba."""
    if "numba" not in installed():
        return 0.0
    import numba

    def chain(value: int, turns: int) -> int:  # both are of 64 bits
        for _ in range(turns):
            value ^= value << 13
            value ^= value >> 7
            value ^= value << 17
        return value

    compiled = numba.njit("int64(int64, int64)", nogil=True)(chain)
    best_s = inf
    for seed in range(1, CHAINS + 1):
        began_s = time.thread_time()
        compiled(seed, CHAIN_TURNS)
        best_s = min(best_s, time.thread_time() - began_s)
    return CHAIN_TURNS * CHAIN_CYCLES / best_s


def load_1_minute() -> float:
    return round(os.getloadavg()[0], 2)


def said_of_load(load: float) -> str:
    """Returns the load before a figure, in words."""
    text = f"load before it: {load:.1f}"
    return f"{text}, above {LOAD_MOST:g}, so its times mean little" if load > LOAD_MOST else text
