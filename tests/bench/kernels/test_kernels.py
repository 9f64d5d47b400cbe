"""`bench kernels` on little: every layer's calls run, work is counted right, limits and peers stand beside."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from adamctl.bench.kernels import measuring
from adamctl.bench.kernels.kernels import all_cases, run_kernels_benchmark, select
from adamctl.bench.kernels.lbfgs_rounds import measure, measure_rounds
from adamctl.bench.kernels.measuring import Limit, calls_per_s
from adamctl.bench.kernels.rule_cases import rule_cases
from adamctl.bench.kernels.sample_models import SAMPLES
from adamctl.bench.kernels.vector_cases import factor_cases, vector_cases
from adamctl.bench.kernels.warps import measure_warps
from adamctl.bench.plot import plot_kernels
from adamctl.cli.bench.bench import command
from adamctl.errors import ConfigurationError
from adamctl.kernels.backend import installed
from adamctl.kernels.rules import RULES
from adamctl.model.commands import Reduce
from adamctl.model.description import Conv2D, Custom, Dense, MaxPool2D, Model, Softmax, _Layer
from tests.bench.peers_for_tests import interpreter

LITTLE = Model((8, 8, 2), (Conv2D(3, 3, activation="relu"), MaxPool2D(2), Dense(5, "sigmoid"), Softmax(4)))


def test_every_layer_has_two_cases_and_its_work_is_counted() -> None:
    cases = {case.name: case for case in all_cases([(LITTLE, 7)], 1 << 20) if case.group == "layer"}
    forward, step = cases["conv2d1 8x8x2 -> 6x6x3 forward"], cases["conv2d1 8x8x2 -> 6x6x3 step"]
    assert forward.work == 2 * 7 * (36 * 3 * 18)
    assert step.work == 2 * forward.work  # nobody needs the error at the images
    dense = cases["dense1 3x3x3 -> 5 step"]
    assert dense.work == 3 * 2 * 7 * 27 * 5
    pool = cases["maxpool2d1 6x6x3 -> 3x3x3 forward"]
    assert (pool.bound, pool.unit) == ("memory", "gb_per_s")
    assert pool.work == 4 * 7 * (108 + 27)


@pytest.mark.parametrize("backend", installed())
def test_every_call_of_every_kind_of_layer_runs(backend: str) -> None:
    for case in all_cases([(LITTLE, 3)], 1 << 12):
        if case.group == "layer" and backend in case.backends:
            call = case.make(backend)
            for _ in range(3):
                call()


def test_the_samples_have_every_kind_of_layer() -> None:
    kinds = {type(layer) for model in SAMPLES for layer in model.layers}
    assert kinds == set(_Layer.__subclasses__()) - {Custom}


def test_every_rule_is_measured_and_queued_updates_are_counted() -> None:
    cases = list(rule_cases(1 << 12))
    assert {case.name.split(",")[0] for case in cases} == set(RULES)
    one, eight = [case for case in cases if "queued" in case.name]
    assert eight.work / one.work == pytest.approx(10 / 3)


@pytest.mark.parametrize("backend", installed())
def test_every_round_and_conversion_runs(backend: str) -> None:
    names = set()
    for case in [*vector_cases(1 << 10), *factor_cases(3, 70, 5)]:
        names.add(case.name.split(",")[0])
        if backend not in case.backends:
            continue
        call = case.make(backend)
        call()
        call()
    assert names >= {"R1 of L-BFGS", "R2 of L-BFGS", "R3 of L-BFGS", "to bfloat16", "from float16"}
    assert "factors into sgd" in names


def test_the_report_has_every_implementation_the_limit_and_the_peer(tmp_path: Path) -> None:
    cases = select(list(all_cases([(LITTLE, 3)], 1 << 12)), ["sgd, 0", "dense1"])
    report = run_kernels_benchmark(cases, rounds=2, seconds=0.002, threads=2, peer_python=interpreter(tmp_path))
    rows = {row["kernel"]: row for row in report["results"]}
    assert len(rows) == 3
    rule = next(row for name, row in rows.items() if name.startswith("sgd"))
    dense = rows["dense1 3x3x3 -> 5 step"]
    for row, unit in ((rule, "gb_per_s"), (dense, "gflop_per_s")):
        assert all(row[f"{backend}_{unit}"] is not None for backend in installed())
        assert row["best"] in installed()
        assert row[f"limit_{unit}"] > 0
        assert row["fraction_of_limit"] > 0
    assert rule["torch_gb_per_s"] == pytest.approx(4 * 4096 * 3 * 1000 / 1e9, abs=0.01)
    assert rule["ratio_vs_torch"] > 0
    assert dense["torch_gflop_per_s"] is None
    assert dense["peer_error"] == "nothing like it"
    pytest.importorskip("matplotlib")
    picture = tmp_path / "figure.svg"
    plot_kernels(report, picture)
    assert "share of the measured limit" in picture.read_text()


def test_words_that_name_no_kernel_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="found none that matches; kernels: conv2d1"):
        select(list(all_cases([(LITTLE, 3)], 1 << 12)), ["flux"])


def test_threads_share_the_time_and_a_failure_is_raised() -> None:
    counts = np.zeros(2, np.int64)

    def call(index: int) -> None:
        counts[index] += 1

    rate = calls_per_s([lambda: call(0), lambda: call(1)], 0.02)
    assert rate > 0
    assert (counts > 0).all()

    def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        calls_per_s([fail, lambda: call(1)], 0.02)


def test_a_limit_is_the_best_of_its_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> None: ...

    def large() -> None: ...

    rates = {small: 100.0, large: 2.0}
    monkeypatch.setattr(measuring, "calls_per_s", lambda calls, seconds: sum(rates[call] for call in calls))
    assert Limit([(1.0, lambda: small), (1000.0, lambda: large)], 3).measure(0.002) == 6000.0
    assert Limit([(1.0, lambda: small), (10.0, lambda: large)], 1).measure(0.002) == 100.0


def test_the_command_prints_json(tmp_path: Path) -> None:
    file = tmp_path / "little.toml"
    file.write_text('name = "little"\n[model]\ninput = [6]\n[[model.layers]]\ntype = "softmax"\nunits = 3\n')
    arguments = ["kernels", str(file), "--only", "softmax1", "--rounds", "1", "--seconds", "0.001", "--json"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    assert [row["kernel"].split()[0] for row in json.loads(result.stdout)["results"]] == ["softmax1", "softmax1"]


@pytest.mark.parametrize("backend", installed())
def test_the_rounds_of_an_lbfgs_iteration_run_on_little(backend: str) -> None:
    found = measure_rounds(5000, 2, 3, backend)
    assert (found.elements, found.history) == (4096, 2)
    assert min(found.copy_s, found.measure_s, found.commit_s, found.step_s, found.ratio) > 0


def test_a_round_that_measures_has_as_many_numbers_as_the_algorithm_reads() -> None:
    assert len([command for command in measure(10) if isinstance(command, Reduce)]) == 4 * 10 + 7


def test_warps_are_measured_by_every_implementation_that_is_installed() -> None:
    taken = measure_warps(12, 3, rounds=2, seconds=0.001)
    there = {name: importlib.util.find_spec(name) is not None for name in ("numpy", "numba", "scipy")}
    assert {name: taken[f"{name}_us"] is not None for name in there} == there
    assert all(value > 0 for value in taken.values() if value is not None)
