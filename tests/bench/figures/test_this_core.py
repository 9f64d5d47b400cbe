"""What /proc/cpuinfo says of a core."""

from __future__ import annotations

import pytest

from adamctl.bench.figures.paper_machines import ADAM, Core
from adamctl.bench.figures.this_core import core_of
from adamctl.errors import ConfigurationError

ONE = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\ncpu MHz\t\t: 2500.000\nflags\t\t: fpu fma avx avx512f"
)


def test_the_first_core_counts() -> None:
    text = f"{ONE}\n\nprocessor\t: 1\ncpu MHz\t\t: 800.0\nflags\t\t: fpu\n"
    assert core_of(text, 100e9) == Core(2.5e9, 64, 100e9)


def test_a_core_of_adams_is_set_beside_it_by_peaks() -> None:
    assert ADAM.core_speed(core_of(ONE, 100e9)) == pytest.approx(1.8 * 16 / (2.5 * 64))


def test_what_is_no_x86_processor_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected `cpu MHz` and `flags`; found processor, BogoMIPS"):
        core_of("processor\t: 0\nBogoMIPS\t: 50.00\n", 1.0)
