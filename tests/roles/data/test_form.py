"""Where examples and labels lie in a body."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.roles.data.client.batches import new_arrays
from adamctl.roles.data.form import ExampleForm
from adamctl.wire.constants import BODY_BYTES_MAX

dtypes = st.sampled_from(["uint8", "float32"])
BYTES = {"uint8": 1, "float32": 4}


@given(st.integers(1, 1000), st.integers(1, 5000), dtypes)
def test_labels_are_aligned_and_behind_the_images(examples: int, elements: int, dtype: str) -> None:
    offset, positions, size = ExampleForm(elements, dtype).body(examples)
    assert offset % 64 == 0 and 0 <= offset - BYTES[dtype] * examples * elements < 64
    assert positions == 0 and size == offset + 4 * examples
    assert ExampleForm(elements, dtype).body(examples, examples) == (offset, size, size + 4 * examples)


@given(st.integers(1, 8_000_000), dtypes)
def test_the_longest_read_fits_into_a_body_and_no_longer_one_does(elements: int, dtype: str) -> None:
    form = ExampleForm(elements, dtype)
    most = form.examples_per_read_max
    assert most == 0 or form.body(most, most).size_bytes <= BODY_BYTES_MAX
    assert (most + 1) * (BYTES[dtype] * elements + 8) > BODY_BYTES_MAX - 64


@pytest.mark.parametrize("examples", [1, 20, 256])
def test_bytes_take_a_quarter_of_what_floats_take(examples: int) -> None:
    assert ExampleForm(784, "uint8").body(examples).size_bytes <= 0.27 * ExampleForm(784).body(examples).size_bytes


@pytest.mark.parametrize(("form", "size_bytes"), [(ExampleForm(8, "uint8"), 36), (ExampleForm(8, targets=3), 44)])
def test_what_a_reader_holds_of_an_example(form: ExampleForm, size_bytes: int) -> None:
    images, labels = new_arrays(5, (2, 4), form)
    assert form.scaled_bytes == size_bytes == (images.nbytes + labels.nbytes) // 5
