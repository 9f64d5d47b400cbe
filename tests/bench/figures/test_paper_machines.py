"""The papers' machines are what the papers say, and a core there is as fast as its peak says."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.paper_machines import (
    ADAM,
    AVX,
    AVX512_FMA,
    AVX_FMA,
    DISTBELIEF,
    SSE,
    Core,
    operations_per_cycle,
)


def test_numbers_of_the_papers() -> None:
    assert (ADAM.cores, ADAM.clock_hz, ADAM.memory_bytes, ADAM.link_bytes_per_s) == (16, 1.8e9, 98e9, 1.25e9)
    assert (DISTBELIEF.cores, DISTBELIEF.memory_bytes, DISTBELIEF.link_bytes_per_s) == (16, None, 125e6)
    assert "assumed" in " ".join(ADAM.sources) and DISTBELIEF.sources[0].startswith("cores: 16")


def test_a_core_there_does_the_share_of_its_peak_that_one_here_does() -> None:
    here = Core(clock_hz=3e9, operations_per_cycle=32, product_per_s=72e9)
    assert here.share_of_peak == 0.75
    assert ADAM.core_speed(here) == pytest.approx(1.8 * 16 / (3 * 32))
    assert here.product_per_s * ADAM.core_speed(here) == pytest.approx(0.75 * ADAM.core_peak_per_s)


def test_a_link_of_an_emulated_machine_keeps_the_ratio_of_transfer_to_compute() -> None:
    here = Core(clock_hz=4e9, operations_per_cycle=64, product_per_s=1.0)
    link = DISTBELIEF.scaled_link_bytes_per_s(0.4, here)
    assert link / (0.4 * here.peak_per_s) == pytest.approx(DISTBELIEF.link_bytes_per_s / DISTBELIEF.peak_per_s)
    assert DISTBELIEF.peak_per_s == 16 * 2.3e9 * 8


@pytest.mark.parametrize(
    ("flags", "vendor", "family", "expected"),
    [
        ("sse2", "GenuineIntel", 6, SSE),
        ("sse2 avx", "GenuineIntel", 6, AVX),
        ("avx avx2 fma", "AuthenticAMD", 23, AVX_FMA),
        ("avx fma avx512f", "GenuineIntel", 6, AVX512_FMA),
        ("avx fma avx512f", "AuthenticAMD", 25, AVX_FMA),
        ("avx fma avx512f", "AuthenticAMD", 26, AVX512_FMA),
    ],
)
def test_what_a_core_does_in_a_cycle_is_told_by_its_flags(flags: str, vendor: str, family: int, expected: int) -> None:
    assert operations_per_cycle(flags.split(), vendor, family) == expected
