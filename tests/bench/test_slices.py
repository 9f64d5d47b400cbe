"""The parts of plans are timed here as the cost model counts them; no time is asserted."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import numpy as np
import pytest

from adamctl.bench import slices
from adamctl.bench.slices import cache_bytes, measure_rates, part_operations
from adamctl.kernels.backend import installed
from adamctl.kernels.layers.convpool import ConvPool
from adamctl.model.description import (
    Conv2D,
    Dense,
    Dropout,
    L2Pool2D,
    Local2D,
    LocalContrastNorm,
    Logistic,
    MaxPool2D,
    Model,
    Softmax,
)
from adamctl.model.partition.cost import price
from adamctl.model.partition.geometry import region_size
from adamctl.model.partition.rates import Rates, check_rates
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import work_of
from tests.model.partition.machines import conditions

EVERYTHING = Model(
    (20, 16, 4),
    (
        LocalContrastNorm(3),
        Conv2D(8, 3, padding="same"),
        MaxPool2D(2),
        Conv2D(8, 3, padding="same", groups=2),
        MaxPool2D(2, 1),
        Dropout(0.2),
        Local2D(4, 3, padding="same"),
        L2Pool2D(2),
        Dense(12, "tanh"),
        Dropout(0.5),
        Logistic(6),
    ),
    "logistic",
)
HEADS = Model((9,), (Dense(8, "relu"), Softmax(6)))


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_every_kind_of_stage_is_timed_and_priced(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend not in installed():
        pytest.skip(f"{backend} is not installed")
    monkeypatch.setenv("ADAMCTL_KERNELS", backend)
    told: list[str] = []
    for model in (EVERYTHING, HEADS):
        plans = [make_plan(model, partitions) for partitions in (1, 2)]
        rates = measure_rates(plans, 4, told.append)
        check_rates(rates)
        for plan in plans:
            for stage in plan.stages:
                work = work_of(plan, stage.index, 0)
                assert work is not None and work.kind in {rate.kind for rate in rates.stages}
            found = price(plan, rates, conditions())
            assert found.examples_per_s > 0 and np.isfinite(found.interval_s)
        assert msgspec.json.decode(msgspec.json.encode(rates), type=Rates) == rates
    assert "partition 0 of 1" in told and "partition 0 of 2" in told


@pytest.mark.parametrize("kind", ["dense", "local2d"])
def test_where_the_batch_decides_the_time_a_rate_is_of_the_examples_that_were_timed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights that each example reads anew cost more than those that a whole batch shares."""
    plan = make_plan(EVERYTHING, 1)
    amount = sum(work.amount for stage in plan.stages if (work := work_of(plan, stage.index, 0)))
    for examples in (1, 3, 8):
        monkeypatch.setattr(slices, "AMOUNT_MAX", examples * amount)
        rates = measure_rates([plan], 5)
        assert [rate.batch for rate in rates.stages if rate.kind == kind] == [min(examples, 5)]


def test_the_same_part_is_timed_once() -> None:
    plan = make_plan(HEADS, 2)
    told: list[str] = []
    assert len(measure_rates([plan, plan], 2, told.append).stages) == 2
    assert told == ["partition 0 of 2"]


def test_rates_are_in_the_seconds_of_the_clock_that_is_given() -> None:
    """Processor time, where a process has a share of a core: each way takes one second of this one."""
    ticks = itertools.count()
    plan = make_plan(Model((6, 6, 2), (Dense(5), Softmax(3))), 1)
    found = measure_rates([plan], 4, clock=lambda: float(next(ticks)))
    works = [work_of(plan, stage, 0) for stage in range(len(plan.stages))]
    assert [rate.amount_per_s for rate in found.stages] == [work.amount * 4 / 2 for work in works if work is not None]


def test_parts_that_do_not_fit_together_are_timed_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(EVERYTHING, 1)
    together = measure_rates([plan], 2)
    monkeypatch.setattr(slices, "BYTES_MAX", 1)
    monkeypatch.setattr(slices, "ELEMENTS_THROUGH_MAX", 0)
    alone = measure_rates([plan], 2)
    assert [rate.label for rate in alone.stages] == [rate.label for rate in together.stages]


def test_inputs_are_what_the_layers_before_make_of_noise() -> None:
    for model in (EVERYTHING, Model((8, 8, 1), (Conv2D(4, 3, activation="relu"), Dense(8), Softmax(4)))):
        plan = make_plan(model, 1)
        inputs = slices._inputs_of_stages(plan, "numpy")
        assert [one.shape[1:] for one in inputs] == [stage.input for stage in plan.stages]
        assert inputs[0].min() < 0
    assert inputs[1].min() == 0 and 0.2 < (inputs[1] > 0).mean() < 0.8


def test_the_operations_of_a_part_make_its_outputs() -> None:
    for partitions in (1, 2, 3):
        plan = make_plan(EVERYTHING, partitions)
        for stage in plan.stages:
            for number, part in enumerate(stage.parts):
                operations = part_operations(plan, stage.index, number, "numpy")
                assert np.prod(operations[-1].output_shape) == region_size(part.outputs)
                assert np.prod(operations[0].input_shape) == region_size(part.inputs)
                assert len(operations) == (1 if part.convolved is None else 2)


@pytest.mark.skipif("numba" not in installed(), reason="pooling is fused where it is compiled")
def test_pooling_is_timed_in_its_convolution_where_it_is_computed_so() -> None:
    plan = make_plan(EVERYTHING, 2)
    kinds = [[type(one) for one in part_operations(plan, stage, 1, "numba")] for stage in (1, 2)]
    assert kinds[0] == [ConvPool] and len(kinds[1]) == 2


def test_caches_are_those_of_the_machine(tmp_path: Path) -> None:
    for index, (level, kind, size) in enumerate((("1", "Data", "32K"), ("2", "Unified", "1024K"), ("x", "", "none"))):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert (cache_bytes(2, tmp_path), cache_bytes(3, tmp_path), cache_bytes(2, tmp_path / "none")) == (1 << 20, 0, 0)
