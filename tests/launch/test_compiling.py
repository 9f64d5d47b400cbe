"""Kernels are compiled before roles start, once, by processes that leave with us."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from adamctl.config.augment import AugmentConfig
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.config.load import load_experiment
from adamctl.errors import ConfigurationError
from adamctl.kernels import backend, kernel_cache, needed
from adamctl.launch import compiling
from adamctl.model.description import Dense, Model, Softmax

pytestmark = pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")
SMALL = ("elementwise.add_bias", "rules.address", "rules.address")


@pytest.fixture
def experiment() -> Experiment:
    return load_experiment(Path(__file__).parents[2] / "examples" / "digits.toml").experiment


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(kernel_cache.VARIABLE, str(tmp_path))
    kernel_cache._prepare.cache_clear()
    yield tmp_path
    kernel_cache._prepare.cache_clear()


def test_a_run_needs_kernels_of_its_layers_its_rule_and_its_wire(experiment: Experiment) -> None:
    names = compiling.kernels_of(experiment)
    assert {"convolution.backward", f"rules.{experiment.optimizer.type}"} <= set(names)
    assert not [name for name in names if name.startswith(("local.", "conversions.", "logistic."))]
    assert compiling.kernels_of(experiment, "numpy") == ()
    train = msgspec.structs.replace(experiment.train, class_weights="balanced")
    weighted = set(compiling.kernels_of(msgspec.structs.replace(experiment, train=train)))
    assert weighted ^ set(names) == {"losses.cross_entropy_error", "weighted_losses.cross_entropy_error"}


def test_a_run_that_warps_images_needs_the_kernels_of_warps(experiment: Experiment) -> None:
    assert not set(needed.WARP_KERNELS) & set(compiling.kernels_of(experiment))
    data = DataConfig(augment=AugmentConfig(rotate=5))
    assert set(needed.WARP_KERNELS) <= set(compiling.kernels_of(msgspec.structs.replace(experiment, data=data)))


def test_a_batch_algorithm_needs_the_kernels_of_rounds_and_of_no_rule() -> None:
    model = Model((8, 8, 1), (Dense(4), Softmax(10)))
    names = compiling.kernels_of(Experiment(name="x", model=model, optimizer=OptimizerConfig(type="lbfgs")))
    assert set(needed.ROUND_KERNELS) <= set(names)
    assert not [name for name in names if name.startswith(("rules.", "factors.")) and name != "rules.address"]


def test_what_is_missing_is_compiled_once_and_told(
    experiment: Experiment, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "kernels_of", lambda experiment, forced: SMALL)
    notes: list[str] = []
    assert compiling.compile_kernels(experiment, os.environ, 2, notes.append) == 2
    assert notes[0] == "compiling 2 kernels, each once on this machine"
    assert notes[-1].startswith("compiled 2 kernels in ")
    assert sorted(path.name for path in kernel_cache.folder().glob("*.nbi"))
    notes.clear()
    assert compiling.compile_kernels(experiment, os.environ, 2, notes.append) == 0
    assert notes == []


def test_how_far_it_is_and_for_how_long_is_told_now_and_then(
    experiment: Experiment, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "kernels_of", lambda experiment, forced: SMALL)
    monkeypatch.setattr(compiling, "NOTE_INTERVAL_S", 0.0)
    notes: list[str] = []
    compiling.compile_kernels(experiment, os.environ, 1, notes.append)
    assert len(notes) > 2
    assert all(re.fullmatch(r"compiled [01] of 2 kernels in \d+ s so far", note) for note in notes[1:-1]), notes


def test_a_compiler_that_ends_early_is_left_to_the_roles(
    experiment: Experiment, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "kernels_of", lambda experiment, forced: ("none.such", *SMALL))
    notes: list[str] = []
    compiling.compile_kernels(experiment, os.environ, 2, notes.append)
    assert notes[-1].startswith("compiled 0 kernels")


def test_kernels_that_are_not_installed_are_refused(experiment: Experiment) -> None:
    with pytest.raises(ConfigurationError, match="expected one of numpy, numexpr, numba"):
        compiling.compile_kernels(experiment, {**os.environ, "ADAMCTL_KERNELS": "cuda"}, 2, print)
