"""A core of this machine, beside which those of the papers' machines are set."""

from __future__ import annotations

from pathlib import Path

from adamctl.bench.figures.paper_machines import Core, operations_per_cycle
from adamctl.bench.kernels.measuring import product_limit
from adamctl.errors import ConfigurationError

INFORMATION = Path("/proc/cpuinfo")
SECONDS, TIMES = 1.0, 3
"""Of a measurement of products, of which the best counts."""


def this_core() -> Core:
    """Returns a core of this machine, with the product rate of `bench kernels`.

    Raises:
        ConfigurationError: the system does not say what processor it has.
    """
    try:
        text = INFORMATION.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{INFORMATION}: expected what the processor is; found {error.strerror}") from None
    return core_of(text, max(product_limit(1).measure(SECONDS) for _ in range(TIMES)))


def core_of(information: str, product_per_s: float) -> Core:
    """Returns a core as /proc/cpuinfo describes the first one.

    Raises:
        ConfigurationError: it says nothing of the clock or of instructions.
    """
    lines = (line.partition(":") for line in information.split("\n\n")[0].splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    try:
        clock_hz, flags = float(said["cpu MHz"]) * 1e6, said["flags"].split()
        family = int(said.get("cpu family", "0"))
    except (KeyError, ValueError):
        raise ConfigurationError(
            f"{INFORMATION}: expected `cpu MHz` and `flags`; found {', '.join(said) or 'nothing'}: planned points need "
            "an x86 processor"
        ) from None
    return Core(clock_hz, operations_per_cycle(flags, said.get("vendor_id", ""), family), product_per_s)
