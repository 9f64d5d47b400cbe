"""What decides the last bits of a gradient is told by name."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl import __version__
from adamctl.kernels import backend
from adamctl.kernels.implementation import PROCESSOR, implementation, with_kernels


def test_it_names_kernels_packages_blas_and_processor() -> None:
    found = implementation()
    assert found["adamctl"] == __version__ and found["numpy"] == np.__version__
    assert found["kernels"] == backend.choose()
    assert found["BLAS"] and found["machine"] and len(found[PROCESSOR].split()) > 3
    assert all(found.values()) and ("compiled for" in found) == (found["kernels"] == "numba")
    assert implementation() == found


@pytest.mark.parametrize(
    ("variable", "value", "entry"),
    [
        ("ADAMCTL_KERNELS", "numpy", "kernels"),
        ("NUMBA_CPU_NAME", "generic", "compiled for"),
        ("NUMBA_CPU_FEATURES", "+sse2", "NUMBA_CPU_FEATURES"),
    ],
)
def test_what_a_user_forces_is_part_of_it(
    variable: str, value: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable != "ADAMCTL_KERNELS" and backend.choose() != "numba":
        pytest.skip("kernels are not compiled")
    before = implementation()
    monkeypatch.setenv(variable, value)
    assert with_kernels.__wrapped__(backend.choose())[entry] == value != before.get(entry)


def test_kernels_that_were_forced_before_are_not_told_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels.cache_clear()
    with monkeypatch.context() as forced:
        forced.setenv(backend.VARIABLE, "numpy")
        assert implementation()["kernels"] == "numpy"
    assert implementation()["kernels"] == backend.choose()
