"""The machines of the papers, as they are assumed, and how fast their cores are beside one of this machine (pure).

A core there is taken to do the share of its peak that a core here does of its own. None of this is fitted to a curve.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from adamctl.model.scaling import distbelief

GBIT = 125e6
"""Bytes per second."""
SSE, AVX, AVX_FMA, AVX512_FMA = 8, 16, 32, 64
"""Float operations a cycle: a product and a sum of 4 or 8 numbers; two fused ones of 8 or of 16 numbers."""
ZEN_4 = ("AuthenticAMD", 25)
"""Does operations of 16 numbers in two halves."""


@dataclass(frozen=True)
class PaperMachine:
    """One machine of a paper.

    Attributes:
        operations_per_cycle: of float32, of one core.
        link_bytes_per_s: in each direction.
        memory_bytes: None: the paper does not say.
        sources: where each number is from.
    """

    name: str
    cores: int
    clock_hz: float
    operations_per_cycle: int
    link_bytes_per_s: float
    memory_bytes: float | None
    sources: tuple[str, ...]

    @property
    def core_peak_per_s(self) -> float:
        """Float operations."""
        return self.clock_hz * self.operations_per_cycle

    @property
    def peak_per_s(self) -> float:
        """Float operations of all cores."""
        return self.cores * self.core_peak_per_s

    def core_speed(self, here: Core) -> float:
        """Returns how fast a core there is, as a share of one here."""
        return self.core_peak_per_s / here.peak_per_s

    def scaled_link_bytes_per_s(self, cores: float, here: Core) -> float:
        """Returns the link of an emulated machine of so many cores here: transfer and compute have the ratio there."""
        return self.link_bytes_per_s * cores * here.peak_per_s / self.peak_per_s


@dataclass(frozen=True)
class Core:
    """A core of this machine.

    Attributes:
        product_per_s: float operations of matrix products that one core does, as measured.
    """

    clock_hz: float
    operations_per_cycle: int
    product_per_s: float

    @property
    def peak_per_s(self) -> float:
        return self.clock_hz * self.operations_per_cycle

    @property
    def share_of_peak(self) -> float:
        return self.product_per_s / self.peak_per_s


ADAM = PaperMachine(
    "Adam's",
    cores=16,
    clock_hz=1.8e9,
    operations_per_cycle=AVX,
    link_bytes_per_s=10 * GBIT,
    memory_bytes=98e9,
    sources=(
        "16 cores of 1.8 GHz, 98 GB, 10 Gbit/s: Adam 4.2",
        "16 float operations a cycle, AVX without fused multiply-add: assumed of such processors of 2012",
    ),
)
DISTBELIEF = PaperMachine(
    "DistBelief's",
    cores=distbelief.CORES,
    clock_hz=distbelief.CLOCK_HZ,
    operations_per_cycle=2 * distbelief.PRODUCTS_PER_CYCLE,
    link_bytes_per_s=distbelief.MACHINE.link_bytes_per_s,
    memory_bytes=None,
    sources=tuple(f"{what}: {text}" for what, text in distbelief.ASSUMED.items()),
)


def operations_per_cycle(flags: Collection[str], vendor: str = "", family: int = 0) -> int:
    """Returns what a core does, from what /proc/cpuinfo says of it."""
    if "avx512f" in flags and (vendor, family) != ZEN_4:
        return AVX512_FMA
    if "fma" in flags:
        return AVX_FMA
    return AVX if "avx" in flags else SSE
