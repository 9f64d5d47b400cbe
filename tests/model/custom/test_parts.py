"""What a part is told, and what it keeps: as the operation allocates it."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest

import adamctl as adam
from adamctl.errors import ConfigurationError
from adamctl.kernels.layers.custom import Custom
from adamctl.model.custom.parts import kept_elements, part_of, placed_region, state_of
from adamctl.model.custom.resolved import resolved
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import Pushing, memory_of
from tests.custom_layers import Mix, Relu, RowSums

OWN = resolved(RowSums(3), (7, 6, 2))


def test_zeros_are_told_by_row_and_column() -> None:
    piece = OWN.piece("rows", 0, 2)
    assert placed_region(OWN, piece) == ((-1, 3), (-1, 7), (0, 2))
    part = part_of(OWN, piece)
    np.testing.assert_array_equal(part.inside[:, 2], [0, 1, 1, 1])
    np.testing.assert_array_equal(part.counts[0], [4, 6, 6, 6, 6, 4])
    assert part.input_shape == (4, 8, 2) and not part.inside.flags.writeable
    assert placed_region(resolved(Relu(), (7, 6, 2)), piece) is None


@pytest.mark.parametrize("layer", [RowSums(3), RowSums(2, 2, "valid"), Relu(), Mix(4)])
@pytest.mark.parametrize("needs_input_error", [True, False])
def test_what_a_part_keeps_is_what_is_allocated(layer: adam.Layer, needs_input_error: bool) -> None:
    own = resolved(layer, (7, 6, 2))
    operation = Custom(own, "own1", "numpy")
    scratch = operation.allocate(1, needs_input_error).scratch
    assert kept_elements(own, operation.piece, needs_input_error) == sum(array.size for array in scratch.values())


def test_it_counts_in_the_memory_of_a_partition() -> None:
    pushing = Pushing(8, 1)
    with_state, without = (
        memory_of(
            make_plan(adam.Sequential([adam.Conv2D(2, 3, padding="same"), layer, adam.Softmax(3)], (9, 8, 2)), 2),
            0, 8, 1, 1, 2, pushing,
        )
        for layer in (RowSums(3), Relu())
    )  # fmt: skip
    piece = resolved(RowSums(3), (9, 8, 2)).piece("rows", 0, 4)
    kept, halo = kept_elements(resolved(RowSums(3), (9, 8, 2)), piece, True), 8 * 2
    assert with_state.activations - without.activations == (kept + halo) * 8 * 4 * 2


class ReadOnlyState(Relu):
    def state(self, part):
        return MappingProxyType({"sums": (5, 2)})


def test_a_state_is_any_mapping() -> None:
    own = resolved(ReadOnlyState(), (4,))
    assert state_of(own, part_of(own, own.piece("units", 0, 2))) == {"sums": (5, 2)}


class WrongState(Relu):
    def state(self, part):
        return {"sums": 5}


def test_a_state_that_is_no_shape_is_refused() -> None:
    own = resolved(WrongState(), (4,))
    with pytest.raises(ConfigurationError, match="wrong_state: state: expected a dictionary name -> shape"):
        state_of(own, part_of(own, own.piece("units", 0, 2)))
