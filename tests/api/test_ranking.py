"""A ranking as docs/losses.md writes it: a loss and a layer of one's own suffice."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import adamctl as adam
from adamctl.kernels.step.network import Network
from adamctl.model.initial import initial_rows
from adamctl.model.metric import metric_of

ROOT = Path(__file__).resolve().parents[2]
ITEMS, FEATURES = 6, 4


@pytest.fixture
def ranking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the document."""
    text = (ROOT / "docs" / "losses.md").read_text().split("## A ranking")[1]
    (tmp_path / "ranking_of_the_document.py").write_text(text.split("```python\n")[1].split("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("ranking_of_the_document")
    del sys.modules["ranking_of_the_document"]


def lists(count: int, seed: int) -> tuple[Any, Any]:
    """Returns items [count, ITEMS, 1, FEATURES] and how good each is, by a function that is not linear."""
    items = np.random.default_rng(seed).standard_normal((count, ITEMS, 1, FEATURES)).astype(np.float32)
    goodness = items[..., 0] * 2 - np.abs(items[..., 1]) + np.maximum(items[..., 2], 0)
    return items, goodness[..., 0]


def model_of(ranking: Any) -> adam.Model:
    layers = [adam.Conv2D(32, 1, activation="relu"), adam.Conv2D(1, 1), ranking.Scores()]
    return adam.Sequential(layers, (ITEMS, 1, FEATURES), loss=ranking.RankNet)


def test_its_layer_and_its_loss_keep_their_promises(ranking: Any) -> None:
    adam.check_layer(ranking.Scores(), input_shape=(ITEMS, 1, 1), partitions=(2, 3))
    adam.check_loss(ranking.RankNet)


def test_it_learns_to_order_lists_that_it_has_not_seen(ranking: Any) -> None:
    model = model_of(ranking)
    network = Network(model, 20)
    flat = np.zeros(network.flat_size, np.float32)
    for index, (tensor, view) in enumerate(zip(network.tensors, network.views(flat), strict=True)):
        view[...] = initial_rows(tensor, index, 0, tensor.shape[0], 7).reshape(tensor.shape)
    (items, goodness), unseen = lists(400, 1), lists(20, 2)
    context = network.context()

    def ordered() -> float:
        return metric_of(model).value(network.tally(context, flat, *unseen)) or 0.0

    before = ordered()
    for start in 10 * list(range(0, 400, 20)):
        network.step(context, flat, items[start : start + 20], goodness[start : start + 20])
        flat -= np.float32(0.3) * context.gradient
    assert metric_of(model).name == "ordered" and before < 0.8 < 0.93 < ordered(), (before, ordered())


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [1, 2])
def test_it_trains_in_real_processes(ranking: Any, tmp_path: Path, partitions: int) -> None:
    run = adam.fit(
        model_of(ranking), (*lists(400, 1), *lists(60, 2)), optimizer=adam.SGD(0.3), passes=12, batch=20,
        runs=tmp_path / "runs", partitions=partitions, workers=partitions, threads=1, quiet=True,
    )  # fmt: skip
    assert run.result["metric"] == "ordered" and run.result["metric_value"] > 0.93
