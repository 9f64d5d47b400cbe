"""What goes between partitions: exactly what each needs of the others, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adamctl.model.description import Conv2D, Custom, Dense, LocalContrastNorm, MaxPool2D, Model, Softmax
from adamctl.model.layout import ELEMENT_BYTES, tensors_of
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.plan import PartitionPlan, Traffic
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.stages import stages_of
from tests.model.partition.any_model import cuts_of, models

MODEL = Model((12, 12, 2), (Conv2D(4, 3, padding="same"), Conv2D(6, 3, padding="same"), Dense(8), Softmax(4)))


@st.composite
def plans(draw: st.DrawFn) -> PartitionPlan:
    model, partitions = draw(models()), draw(st.integers(1, 9))
    return make_plan(model, partitions, {stage.name: draw(cuts_of(stage, partitions)) for stage in stages_of(model)})


@settings(deadline=None, max_examples=150, print_blob=True)
@given(plans())
def test_the_sources_of_an_input_are_all_of_it_each_element_once(plan: PartitionPlan) -> None:
    for stage in plan.stages[1:]:
        before = plan.stages[stage.index - 1]
        for consumer, part in enumerate(stage.parts):
            counted = np.zeros(stage.input, int)
            for edge in plan.sources(stage.index, consumer):
                assert (edge.stage, edge.consumer) == (stage.index, consumer)
                where = tuple(slice(*along) for along in edge.region)
                counted[where] += 1
                made = before.parts[edge.producer].outputs
                assert made is not None
                assert all(a <= c < d <= b for (a, b), (c, d) in zip(made, edge.region, strict=True))
            wanted = np.zeros(stage.input, int)
            if part.inputs is not None:
                wanted[tuple(slice(*along) for along in part.inputs)] = 1
            assert (counted == wanted).all()


@settings(deadline=None, max_examples=100, print_blob=True)
@given(plans())
def test_edges_are_sources_at_others_and_go_back_where_parameters_come_before(plan: PartitionPlan) -> None:
    assert plan.sources(0, 0) == () == plan.edges(0)
    for stage in plan.stages:
        edges = plan.edges(stage.index)
        sources = [edge for p in range(plan.partitions) for edge in plan.sources(stage.index, p)]
        assert list(edges) == [edge for edge in sources if edge.producer != edge.consumer]
        trained_before = any(other.tensors for other in plan.stages[: stage.index])
        assert plan.backward_edges(stage.index) == (edges if trained_before else ())


@settings(deadline=None, max_examples=100, print_blob=True)
@given(plans())
def test_owners_get_the_part_of_every_other_holder_of_their_rows(plan: PartitionPlan) -> None:
    tensors = tensors_of(plan.model)
    shapes = [tensor.shape for tensor in tensors]
    for stage in plan.stages:
        partials = plan.partials(stage.index)
        for place, tensor in enumerate(stage.tensors):
            given_to: dict[int, set[int]] = {}
            for partial in partials:
                if partial.tensor == tensor:
                    assert partial.rows == stage.parts[partial.owner].owned[place]
                    rows = partial.rows[1] - partial.rows[0]
                    assert partial.elements == rows * int(np.prod(shapes[tensor][1:]))
                    given_to.setdefault(partial.owner, set()).add(partial.sender)
            shared = stage.kind == "conv2d" and stage.cut.axis == "rows"
            name = tensors[tensor].name
            shared |= name.endswith((".added", ".slope")) or (name.startswith("mix") and name.endswith(".scale"))
            for owner in stage.holders:
                others = set(stage.holders) - {owner}
                if stage.parts[owner].owned[place] is not None:
                    assert given_to.get(owner, set()) == (others if shared else set())


def test_the_source_of_a_layer_of_ones_own_is_a_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model((6, 5, 2), (Custom("tests.custom_layers:Relu"), Softmax(4)))
    before = make_plan(model, 2).hash
    assert before == make_plan(model, 2).hash
    monkeypatch.setattr("adamctl.model.partition.plan.source_hashes", lambda model: {"tests.custom_layers:Relu": "0"})
    assert make_plan(model, 2).hash != before


@settings(deadline=None, max_examples=60, print_blob=True)
@given(plans(), plans())
def test_equal_plans_have_equal_hashes_and_others_do_not(one: PartitionPlan, two: PartitionPlan) -> None:
    assert (one.hash == two.hash) == (one == two)


def test_a_halo_of_rows() -> None:
    plan = make_plan(MODEL, 3)
    assert [stage.cut for stage in plan.stages[:2]] == [Cut("rows", (4, 8))] * 2
    assert [(edge.producer, edge.consumer, edge.region[0]) for edge in plan.edges(1)] == [
        (1, 0, (4, 5)),
        (0, 1, (3, 4)),
        (2, 1, (8, 9)),
        (1, 2, (7, 8)),
    ]
    assert {edge.elements for edge in plan.edges(1)} == {12 * 4}


def test_bytes_between_a_pair() -> None:
    """Up: a row of 12 x 4, half an image of 12 x 6, half of 8 units, half of 4 logits; down as up, but no logits."""
    plan = make_plan(MODEL, 2)
    up, down = 12 * 4 + 6 * 12 * 6 + 4 + 2, 12 * 4 + 6 * 12 * 6 + 4
    partial = 2 * ((2 * 3 * 3 * 2 + 2) + (3 * 3 * 3 * 4 + 3))  # half of each convolution's maps, and back their sum
    assert plan.head == "gather"
    assert plan.traffic() == (
        Traffic(0, 1, 4 * up, 4 * down, 4 * partial),
        Traffic(1, 0, 4 * up, 4 * down, 4 * partial),
    )
    assert make_plan(MODEL, 1).traffic() == ()


def test_fewer_maps_than_partitions_have_fewer_owners() -> None:
    plan = make_plan(Model((12, 12, 2), (Conv2D(1, 3), Softmax(4))), 2)
    assert [part.owned for part in plan.stages[0].parts] == [(None, None), ((0, 1), (0, 1))]
    assert [(partial.sender, partial.owner, partial.elements) for partial in plan.partials(0)] == [
        (0, 1, 18),
        (0, 1, 1),
    ]


def test_the_first_parameters_get_no_error_back() -> None:
    model = Model((12, 12, 2), (LocalContrastNorm(3), Conv2D(4, 3), Conv2D(4, 3), Softmax(4)))
    plan = make_plan(model, 2)
    assert plan.edges(1) and not plan.backward_edges(1)
    assert plan.backward_edges(2) == plan.edges(2) != ()


def test_a_hash_does_not_change_from_version_to_version() -> None:
    """Members of different versions would refuse each other: change it on purpose only."""
    pooled = Model((12, 12, 2), (Conv2D(4, 3), MaxPool2D(2), Softmax(4)))
    assert make_plan(pooled, 2).hash == "740ec1e4b0066e67a3e1b105a641cbc9"


def test_a_large_head_exchanges_four_numbers() -> None:
    plan = make_plan(Model((8,), (Softmax(5000),)), 3, {"softmax1": Cut("units", (0, 2000))})
    assert [plan.head_elements(p) * ELEMENT_BYTES for p in range(3)] == [0, 4 * 8, 4 * 8]
    assert plan.traffic() == (Traffic(1, 2, 32, 0, 0), Traffic(2, 1, 32, 0, 0))
    assert sum(region_size(part.outputs) for part in plan.stages[0].parts) == 5000


def test_a_plan_in_short_names_layers_with_parameters() -> None:
    layers = (Conv2D(4, 3), MaxPool2D(2), Conv2D(4, 3), Dense(8), Dense(6), Softmax(4))
    assert make_plan(Model((16, 16, 1), layers), 2).in_short == "rows conv2d1-conv2d2, units dense1-softmax1"
    cuts = {"softmax1": Cut(whole=1), "conv2d2": Cut("maps")}
    short = make_plan(Model((16, 16, 1), layers), 2, cuts).in_short
    assert short == "rows conv2d1, maps conv2d2, units dense1-dense2, whole in 1 softmax1"
