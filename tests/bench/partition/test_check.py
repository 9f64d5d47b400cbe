"""`bench partition --check`: partitions compute what one process does; whatever is wrong in one of them is found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.bench.partition import check
from adamctl.bench.partition.check import Found, above_limit, check_partitions
from adamctl.cli.main import application
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.kernels.backend import Backend
from adamctl.kernels.native import Call
from adamctl.kernels.operation import Array
from adamctl.kernels.partition.program import Batch
from adamctl.kernels.partition.regions import BlockMove
from adamctl.kernels.partition.stages import CutNetwork

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"
BATCH = 8


def experiment_of(name: str) -> Experiment:
    return load_experiment(EXAMPLES / f"{name}.toml").experiment


@pytest.mark.parametrize("name", ["digits", "locally_connected", pytest.param("speech", marks=pytest.mark.slow)])
def test_partitions_compute_what_one_process_does(name: str) -> None:
    report = check_partitions(experiment_of(name), [2, 3], batch=BATCH)
    assert not above_limit(report)
    rows = report["results"]
    layers = [row["layer"] for row in rows if row["partitions"] == 3]
    assert layers[-2:] == ["softmax1", "loss"] and layers == [row["layer"] for row in rows if row["partitions"] == 2]
    assert any(row["difference"] > 0 for row in rows), "sums in another order differ"
    for row in rows:
        assert row["difference"] == max(row["outputs"] or 0.0, row["gradients"] or 0.0)


def test_the_longest_sum_of_a_layer_is_that_of_an_output_or_of_a_gradient() -> None:
    report = check_partitions(experiment_of("mnist"), [2], batch=BATCH)
    summed = {row["layer"]: row["summed"] for row in report["results"]}
    assert summed["conv2d1"] == 24 * 24 * BATCH, "each weight of a map is used at 24 x 24 places"
    assert summed["dense2"] == 400 and summed["loss"] == max(summed.values())


@pytest.mark.parametrize("adds", [False, True])
def test_blocks_that_do_not_arrive_are_found(adds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of others that are not copied, or errors of others that are not added."""
    native = BlockMove.native

    def lost(self: BlockMove, backend: Backend) -> list[Call] | None:
        return [] if self.adds is adds else native(self, backend)

    monkeypatch.setattr(BlockMove, "native", lost)
    assert above_limit(check_partitions(experiment_of("digits"), [2], batch=BATCH))


def test_one_weight_that_is_a_little_wrong_is_found_and_the_command_ends_with_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    step = check._partitioned_step

    def wrong(network: CutNetwork, weights: list[Array], made: Batch) -> Found:
        changed = [weight.copy() for weight in weights]
        changed[0].flat[0] *= 1.01
        return step(network, changed, made)

    arguments = ["bench", "partition", str(EXAMPLES / "digits.toml"), "--check", "--partition-counts", "2", "--json"]
    good = CliRunner().invoke(application, arguments)
    assert good.exit_code == 0 and json.loads(good.stdout)["bench"] == "partition-check"
    monkeypatch.setattr(check, "_partitioned_step", wrong)
    found = CliRunner().invoke(application, arguments)
    assert found.exit_code == 1
    assert "conv2d1 with 2 partitions:" in str(found.exception) + found.output
