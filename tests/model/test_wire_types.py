"""The types of numbers on the wire."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.numeric.convert import NARROW
from adamctl.model.wire_types import WIRE_ELEMENT_BYTES, WIRE_TYPES, not_known, of_factors


def test_every_type_has_its_size_and_its_array() -> None:
    assert set(WIRE_ELEMENT_BYTES) == set(WIRE_TYPES) == {"float32", *NARROW}
    for name, narrow in NARROW.items():
        assert np.dtype(narrow).itemsize == WIRE_ELEMENT_BYTES[name]


@pytest.mark.parametrize(
    ("wire", "factors"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("float16", "bfloat16")]
)
def test_factors_of_16_bits_keep_the_range_of_float32(wire: str, factors: str) -> None:
    assert of_factors(wire) == factors  # type: ignore[arg-type]


def test_an_unknown_name_is_told_what_there_is() -> None:
    assert not_known("float64") == "expected dtype float32, bfloat16 or float16; found 'float64'; use one of these"
    assert len(not_known("x" * 70_000)) < 150
