"""What a partition computes, keeps and sends is counted from the plan alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from adamctl.model.description import Conv2D, Custom, Dense, Dropout, Local2D, MaxPool2D, Model, Softmax
from adamctl.model.layout import tensors_of
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import (
    PROCESS_BYTES,
    Pushing,
    Work,
    computed_elements,
    exchanged_elements,
    factored_by,
    held_elements,
    memory_of,
    packed_elements,
    parameter_traffic,
    work_of,
)
from adamctl.model.shapes import infer
from tests.model.partition.any_model import models

MODEL = Model((14, 12, 2), (Conv2D(4, 3), MaxPool2D(2), Dropout(0.5), Dense(8), Softmax(4)))


def test_the_work_of_a_whole_replica() -> None:
    plan = make_plan(MODEL, 1)
    assert work_of(plan, 0, 0) == Work(
        "conv2d+maxpool2d", "14x12x2 -> 6x5x4", 2 * (12 * 10 * 4 * 18), 4 * (4 * 18 + 4 + 14 * 12 * 2 + 6 * 5 * 4)
    )
    assert work_of(plan, 1, 0) == Work("dropout", "6x5x4 -> 6x5x4", 2 * 2 * 120, 4 * 2 * 120)
    assert work_of(plan, 2, 0) == Work("dense", "6x5x4 -> 8", 3 * 960, 4 * (960 + 8 + 120 + 8), 1 / 3)


def test_rows_that_two_windows_share_are_work_for_both() -> None:
    model = Model((15, 12, 2), (Conv2D(4, 3), MaxPool2D(3, 2), Softmax(4)))
    whole = work_of(make_plan(model, 1), 0, 0)
    one, two = (work_of(make_plan(model, 2), 0, partition) for partition in (0, 1))
    assert whole is not None and one is not None and two is not None
    assert (one.amount + two.amount) * 13 == whole.amount * (7 + 7)
    assert work_of(make_plan(model, 2, {"conv2d1": Cut(whole=1)}), 0, 0) is None


@settings(deadline=None, max_examples=60, print_blob=True)
@given(models())
def test_the_multiply_adds_of_a_stage_are_its_connections(model: Model) -> None:
    plan, shapes = make_plan(model, 1), infer(model)
    for stage in plan.stages:
        connections = sum(shapes[layer].connections for layer in stage.layers)
        work = work_of(plan, stage.index, 0)
        assert work is not None
        if connections and not isinstance(model.layers[stage.layers[0]], Custom):
            assert work.amount == connections * (2 + plan.needs_input_error(stage.index))


def test_places_with_weights_of_their_own() -> None:
    plan = make_plan(Model((8, 8, 1), (Local2D(3, 3), Softmax(4))), 2)
    assert [work_of(plan, 0, p).amount for p in (0, 1)] == [2 * 3 * 6 * 3 * 9] * 2  # type: ignore[union-attr]


def test_memory_is_vectors_of_parameters_and_flights_of_activations_and_edges() -> None:
    plan = make_plan(MODEL, 2)
    held = 4 * 18 + 4 + (120 * 4 + 4) + (8 * 2 + 2)
    assert [held_elements(plan, p) for p in (0, 1)] == [held, held]
    kept = 2 * 3 * 5 * 4  # pooled rows, and which pixels won
    kept += 3 * 5 * 4 + 3 * 5 * 4  # dropout and its error
    kept += 4 + 120  # dense, and the error at its whole input
    kept += 2 + 8
    edges = 8 * 12 * 2  # the batch: half of 12 rows, and what windows read beyond
    edges += 120 + 8  # assembled inputs of dense and softmax
    edges += 60 + 4  # the other's half of these, as it comes
    edges += 3 * 5 * 4 + 4  # errors of its own outputs that the other has computed
    edges += 3 * 5 * 4 + 4  # what the other reads of errors, copied together; of outputs it reads all
    edges += 2  # the other's logits
    memory = memory_of(plan, 0, 10, 2, 4, 3, Pushing(10, 1), read_ahead=20)
    packed = 3 * 72  # weights twice, and their gradient, as pooling is fused
    exchanged = (72 + 4) + (36 + 2) * 3  # its own, the other's of the filters that it sums up, and both sums
    vectors, images = 3 + 4 * 3 + 3, 4 * 20 * 14 * 12 * 2
    parameters = 4 * (held * vectors + 3 * (packed + exchanged))
    assert memory == (PROCESS_BYTES, parameters, 0, 4 * 10 * 3 * kept, 4 * 10 * 3 * edges, images)
    assert memory.total == sum(memory)


def test_convolutions_pack_one_group_at_a_time_and_gradients_of_parameters_held_once_are_not_exchanged() -> None:
    plain = make_plan(Model((8, 8, 4), (Conv2D(6, 3, groups=2), Softmax(4))), 1)
    assert packed_elements(plain, 0) == 2 * (6 * 9 * 2) // 2
    assert packed_elements(plain, 0, forward_only=True) == (6 * 9 * 2) // 2
    assert exchanged_elements(plain, 0) == 0
    dense = make_plan(Model((8, 8, 1), (Dense(16), Softmax(4))), 2)
    assert [packed_elements(dense, p) + exchanged_elements(dense, p) for p in (0, 1)] == [0, 0]


def test_a_whole_replica_keeps_a_slot_for_each_push_of_a_thread_and_the_factors_beside_it() -> None:
    """A replica that only pushes does not compute gradients of layers whose factors it pushes (Adam 3.2.6)."""
    plan = make_plan(MODEL, 1)
    held, weights = held_elements(plan, 0), 120 * 8 + 8 * 4
    rows = (8 + 120) + (4 + 8)
    for pushing, factors, computed in (
        (Pushing(2, 1, "gradient"), 0, held),
        (Pushing(2, 1, "factors"), 2 * rows, held),
        (Pushing(2, 1, "factors", applied_locally=False), 2 * rows, held - weights),
    ):
        memory = memory_of(plan, 0, 2, threads=3, slots=2, flights=9, pushing=pushing)
        assert memory.parameters == 4 * (held * (3 + 2 * 3) + (computed + 3 * 72) * 3)
        assert memory.factors == 4 * factors * 2 * 3


def test_partitions_accrue_nothing_of_what_they_do_not_compute() -> None:
    plan = make_plan(MODEL, 2)
    weights = 120 * 4 + 8 * 2
    memory = [
        memory_of(plan, 0, 2, 1, 2, 3, Pushing(2, 2, "factors", applied_locally=local), vectors=1).parameters
        for local in (True, False)
    ]
    assert memory[0] - memory[1] == 4 * weights * (2 * 3 + 3)


def test_a_partition_that_pushes_factors_computes_no_gradient_of_their_layers() -> None:
    """Where one layer's gradient is pushed after all, its small factors are kept beside it."""
    plan = make_plan(MODEL, 2)
    dense, softmax = (stage.tensors[0] for stage in plan.stages if stage.kind in ("dense", "softmax"))
    rows = {dense: 4 + 120, softmax: 2 + 8}
    for pushing, kept, uncomputed in (
        (Pushing(2, 2, "gradient", applied_locally=False), set(), set()),
        (Pushing(2, 2, "factors"), {dense, softmax}, set()),
        (Pushing(2, 2, "factors", applied_locally=False), {dense, softmax}, {dense, softmax}),
        (Pushing(3, 2, "auto", applied_locally=False), {dense, softmax}, {dense, softmax}),
        (Pushing(3, 2, "auto"), {dense}, set()),
        (Pushing(3, 0, "factors", applied_locally=False), set(), set()),
    ):
        found = factored_by(plan, 0, pushing)
        assert found == (kept, uncomputed, sum(rows[index] for index in kept) * pushing.examples)
        skipped = sum({dense: 4 * 120, softmax: 2 * 8}[index] for index in uncomputed)
        assert computed_elements(plan, 0, found) == held_elements(plan, 0) - skipped
    whole, less = (work_of(plan, 2, 0, uncomputed) for uncomputed in ((), (dense,)))
    assert whole is not None and less is not None
    assert (whole.amount, less.amount) == (3 * 4 * 120, 2 * 4 * 120)


@pytest.mark.parametrize(
    ("examples", "servers", "protocol", "push"),
    [
        (1, 1, "auto", (76 + 2 + 4 + 8 + 2) * 4 // 2 + (4 + 120 + 2 + 8) * 4),
        (1, 1, "gradient", (76 // 2 + 484 + 18) * 4),
        (5, 4, "factors", 4 * (76 // 2 + 5 * (4 + 2 * 120) + 4 + 5 * (2 + 2 * 8) + 2)),
    ],
)
def test_a_partition_pushes_what_it_owns_to_its_own_servers(
    examples: int, servers: int, protocol: str, push: int
) -> None:
    plan = make_plan(MODEL, 2)
    found, fetched = parameter_traffic(plan, tensors_of(MODEL), 0, Pushing(examples, servers, protocol))
    own = 76 // 2  # half of the shared convolution
    if protocol == "auto":
        push = 4 * (own + (4 + 120) + 4 + (2 + 8) + 2)
    assert found == push
    assert fetched == 4 * held_elements(plan, 0)


def test_sixteen_bits_and_rare_fetches_are_fewer_bytes() -> None:
    plan, tensors = make_plan(MODEL, 1), tensors_of(MODEL)
    whole = held_elements(plan, 0)
    narrow = Pushing(1000, 1, "auto", "bfloat16", "float16", 0.25)
    assert parameter_traffic(plan, tensors, 0, narrow) == (2 * whole, 2 * whole * 0.25)
