"""A network cut into stages and parts."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels.partition.stages import HeldTensor, MemberTensors, OwnedRows, cut_network, cuts_of
from adamctl.model.description import Model
from adamctl.model.partition.rules import make_plan
from tests.kernels.partition.test_member import IMAGES, LOCAL, ROWS_AND_UNITS, UNEVEN, VECTOR, cut


def test_parts_read_their_halo_and_hold_their_rows() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    first, second = network.stages[0].parts
    assert first is not None and second is not None
    assert first.outputs == ((0, 2), (0, 4), (0, 4)) and second.outputs == ((2, 5), (0, 4), (0, 4))
    assert first.inputs[0] == (0, 6) and second.inputs[0] == (3, 11), "pooled rows overlap, and so do windows"
    assert network.stages[0].shared == {
        0: (OwnedRows(0, (0, 2)), OwnedRows(1, (2, 4))),
        1: (OwnedRows(0, (0, 2)), OwnedRows(1, (2, 4))),
    }
    dense = network.stages[2].parts[1]
    assert dense is not None
    assert dense.tensors == ((HeldTensor(4, (3, 7)), HeldTensor(5, (3, 7))),)
    assert not network.stages[2].shared
    assert network.backward_stop == 0


def test_sources_and_readers_are_each_others() -> None:
    for cuts in (ROWS_AND_UNITS, UNEVEN):
        network = cut_network(IMAGES, cuts, "numpy")
        for stage in range(1, len(network.stages)):
            for reader in range(network.partitions):
                for source, box in network.sources(stage, reader):
                    assert (reader, box) in network.readers(stage - 1, source)
                    assert reader in [one for one, _ in network.readers(stage - 1, source)]


def test_a_partitions_tensors_lie_where_the_whole_network_has_them() -> None:
    network = cut_network(IMAGES, ROWS_AND_UNITS, "numpy")
    whole = np.arange(MemberTensors(network, 0).flat_size, dtype=np.float32)
    for partition in range(2):
        tensors = MemberTensors(network, partition)
        touched = np.zeros_like(whole)
        for part in tensors.ranges:
            touched[part] += 1
        for view, (tensor, (start, stop)) in zip(tensors.views(whole), tensors.held, strict=True):
            first = network.tensors[tensor].offset + start * network.tensors[tensor].row_size
            np.testing.assert_array_equal(view.reshape(-1), np.arange(first, first + view.size))
            assert len(view) == stop - start
        for view in tensors.views(touched):
            assert (view == 1).all()
        assert touched.max() == 1 and not touched.all()
    with pytest.raises(ValueError, match="expected a vector of"):
        tensors.views(whole[1:])


@pytest.mark.parametrize("model", [IMAGES, LOCAL, VECTOR])
@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
def test_stages_are_what_the_plan_says(model: Model, partitions: int) -> None:
    plan = make_plan(model, partitions)
    network = cut_network(model, cuts_of(plan), "numpy")
    assert network.partitions == partitions
    assert network.head == plan.head
    for stage, planned in zip(network.stages, plan.stages, strict=True):
        for number, (part, expected) in enumerate(zip(stage.parts, planned.parts, strict=True)):
            if part is None:
                assert expected.outputs is None
                continue
            assert (part.inputs, part.outputs) == (expected.inputs, expected.outputs)
            rows = {held.tensor: held.rows for tensors in part.tensors for held in tensors}
            assert rows == {
                tensor: region[0] for tensor, region in zip(planned.tensors, expected.parameters, strict=True) if region
            }
            for tensor, owned in zip(planned.tensors, expected.owned, strict=True):
                own = [one.rows for one in stage.shared.get(tensor, ()) if one.partition == number]
                assert own == ([owned] if owned and tensor in stage.shared else [])
    for number in range(1, len(plan.stages)):
        for consumer in range(partitions):
            sources = [(edge.producer, edge.region) for edge in plan.sources(number, consumer)]
            assert network.sources(number, consumer) == sources


def test_parts_that_leave_something_out_are_refused() -> None:
    with pytest.raises(ValueError, match="dense1: expected parts that make each output once"):
        cut_network(VECTOR, [*cut(VECTOR, [("units", [4, 8]), ("units", [2, 5]), ("units", [1, 4])])], "numpy")


def test_a_cut_whose_parts_hold_no_rows_of_a_tensor_is_refused() -> None:
    """A locally connected layer's weights lie by places first."""
    cuts = cut(LOCAL, [("maps", [1, 3]), ("rows", [1, 4]), ("rows", [3, 4]), ("units", [2, 6]), ("units", [3, 4])])
    with pytest.raises(ValueError, match=r"local2d1: expected a cut whose parts hold rows of local2d1\.weight"):
        cut_network(LOCAL, cuts, "numpy")
