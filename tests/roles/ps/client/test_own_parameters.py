"""A replica's own weights follow the rule as a server's shards do, and its checkpoint is any job's."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig
from adamctl.kernels.rules import make_rule
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.initial import initial_rows
from adamctl.model.layout import build_layout
from adamctl.roles.ps.checkpoint_files import read_checkpoint
from adamctl.roles.ps.client.own_parameters import OwnParameters
from tests.roles.ps.client.own_checks import finished

MODEL = Model((6,), (Dense(9, "relu"), Softmax(4)))
LAYOUT = build_layout(MODEL, 0)
EVERY = range(len(LAYOUT.shards))
RULES = ("sgd", "momentum", "adagrad", "rmsprop", "adam")


def experiment(rule: str) -> Experiment:
    return Experiment(
        name="small", model=MODEL, seed=5, optimizer=OptimizerConfig(type=rule), cluster=ClusterConfig(ps=0)
    )


def begun(
    rule: str, restore: str = "", held: range = EVERY, parameters_only: bool = False
) -> tuple[OwnParameters, np.ndarray]:
    weights = np.full(LAYOUT.flat_size, np.nan, np.float32)
    parameters = OwnParameters(experiment(rule), LAYOUT, held, held)
    parameters.begin(weights, restore, parameters_only)
    return parameters, weights


def gradient(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(LAYOUT.flat_size, np.float32)


@pytest.mark.parametrize("rule", RULES)
def test_weights_begin_from_the_seed_and_follow_the_rule(rule: str) -> None:
    parameters, weights = begun(rule)
    for index, shard in enumerate(LAYOUT.shards):
        values = weights[shard.offset : shard.offset + shard.size]
        drawn = initial_rows(LAYOUT.tensors[shard.tensor], shard.tensor, shard.row_start, shard.row_stop, 5)
        np.testing.assert_array_equal(values, drawn.reshape(-1), err_msg=str(index))
    reference, expected = make_rule(experiment(rule).optimizer.rule), weights.copy()
    states = [reference.initial_state(shard.size) for shard in LAYOUT.shards]
    for number in range(3):
        assert parameters.apply(gradient(number), 0.1) == []
        for shard, state in zip(LAYOUT.shards, states, strict=True):
            part = slice(shard.offset, shard.offset + shard.size)
            reference.apply(expected[part], expected[part], state, gradient(number)[part], 0.1)
    for shard in LAYOUT.shards:
        part = slice(shard.offset, shard.offset + shard.size)
        np.testing.assert_array_equal(weights[part], expected[part])
    assert parameters.pushes == 3 and parameters.updates_per_push == LAYOUT.parameter_count


@pytest.mark.parametrize("compiled", [True, False])
def test_a_shard_whose_gradient_is_not_finite_stays_as_it_is(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setenv("ADAMCTL_BACKEND", "numpy")
    parameters, weights = begun("adagrad")
    before, bad = weights.copy(), gradient(1)
    shard = LAYOUT.shards[1]
    bad[shard.offset] = np.inf
    assert parameters.apply(bad, 0.1) == [1]
    part = slice(shard.offset, shard.offset + shard.size)
    np.testing.assert_array_equal(weights[part], before[part])
    other = LAYOUT.shards[0]
    assert (weights[other.offset : other.offset + other.size] != before[other.offset : other.offset + other.size]).any()


@pytest.mark.parametrize("rule", RULES)
def test_a_checkpoint_of_two_members_goes_on_where_they_were(rule: str, tmp_path: Path) -> None:
    half = len(LAYOUT.shards) // 2
    members = [begun(rule, held=EVERY[:half]), begun(rule, held=EVERY[half:])]
    whole, weights = begun(rule)
    for number in range(2):
        for one in (whole, *(parameters for parameters, _ in members)):
            one.apply(gradient(number), 0.1)
    folder = os.open(tmp_path, os.O_RDONLY)
    files = [
        file
        for number, (one, _) in enumerate(members)
        for file in one.save("small", f"worker-{number}", folder, nullcontext())
    ]
    os.close(folder)
    finished(tmp_path, files)
    assert len(read_checkpoint(tmp_path, verify=True).files) == 2
    afresh, alike = begun(rule, str(tmp_path), parameters_only=True)
    unlike, fresh = begun(rule)
    fresh[...] = alike
    for one in (afresh, unlike):
        one.apply(gradient(7), 0.1)
    np.testing.assert_array_equal(alike, fresh, "the parameters alone: no state of the rule")
    again, restored = begun(rule, str(tmp_path))
    assert again.pushes == 2
    for one in (whole, again):
        one.apply(gradient(7), 0.1)
    for shard in LAYOUT.shards:
        part = slice(shard.offset, shard.offset + shard.size)
        np.testing.assert_array_equal(restored[part], weights[part])


def test_only_what_is_held_is_copied(tmp_path: Path) -> None:
    parameters, weights = begun("sgd", held=EVERY[1:])
    into = np.full_like(weights, 7)
    parameters.copy(into)
    first = LAYOUT.shards[0]
    assert (into[first.offset : first.offset + first.size] == 7).all()
    for shard in LAYOUT.shards[1:]:
        part = slice(shard.offset, shard.offset + shard.size)
        np.testing.assert_array_equal(into[part], weights[part])


def test_a_member_that_owns_nothing_writes_no_file(tmp_path: Path) -> None:
    parameters = OwnParameters(experiment("sgd"), LAYOUT, EVERY, ())
    parameters.begin(np.zeros(LAYOUT.flat_size, np.float32), "")
    folder = os.open(tmp_path, os.O_RDONLY)
    assert parameters.save("small", "worker-1", folder, nullcontext()) == ()
    os.close(folder)
    assert not list(tmp_path.iterdir())
