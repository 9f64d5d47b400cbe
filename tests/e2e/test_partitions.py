"""Replicas of several workers, as a user starts them."""

from __future__ import annotations

import json
import random
import re

import pytest

from tests.e2e import hang
from tests.e2e.conftest import EXAMPLES, Command, Runner

DIGITS = EXAMPLES / "digits.toml"
QUICK = (
    "--json", "--threads", "1", "--target", "0.95", "--passes", "400", "--set", "train.evaluate_every=1", "--set",
    "optimizer.schedule.type=constant", "--set", "optimizer.lr=0.02",
)  # fmt: skip


def partitioned(adamctl: Runner, workers: int, partitions: int, *arguments: str, **environment: str) -> Command:
    cluster = ("--workers", str(workers), "--set", f"cluster.partitions={partitions}")
    return adamctl.start("train", DIGITS, *QUICK, *cluster, *arguments, **environment)


def reaches(command: Command, top1: float = 0.95) -> str:
    code, stdout, stderr = command.wait()
    assert code == 0, stderr
    assert json.loads(stdout)["best_test_top1"] >= top1
    return stderr


def test_a_replica_of_two_partitions_trains_and_its_checkpoint_is_any_replicas(adamctl: Runner) -> None:
    stderr = reaches(partitioned(adamctl, 2, 2, "--set", "optimizer.clip_norm=5"))
    assert "takes part as partition 1 of replica 0" in stderr
    code, stdout, stderr = adamctl.run("eval", "digits/001", "--json")
    assert code == 0, stderr
    assert json.loads(stdout)["top1"] >= 0.95, stdout
    code, _, stderr = adamctl.run(
        "train", DIGITS, "--resume", "digits/001", "--threads", "1", "--set", "train.target=0.96", "--json", "--passes",
        "400", "--set", "train.evaluate_every=1",
    )  # fmt: skip
    assert code == 0, stderr


def test_two_replicas_of_two_partitions_train_together(adamctl: Runner) -> None:
    stderr = reaches(partitioned(adamctl, 4, 2))
    assert "takes part as partition 1 of replica 1" in stderr


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_partition_is_killed_and_the_replica_goes_on_without_losing_a_range(adamctl: Runner, seed: int) -> None:
    command = partitioned(adamctl, 2, 2, "--seed", str(seed))
    command.wait_until(command.trained)
    random.Random(seed).choice(command.roles("worker")).kill()
    stderr = reaches(command)
    assert "is dissolved: partition" in stderr


@pytest.mark.parametrize("node", ["worker-1", "worker-2"])
def test_a_member_whose_threads_hang_is_dropped_and_starts_again(adamctl: Runner, node: str) -> None:
    """Its event loop answers, so that its lease lives on; one of the two leads, and names itself."""
    command = partitioned(adamctl, 2, 2, "--seed", "3", **hang.environment(adamctl.folder))
    command.wait_until(command.trained)
    (adamctl.folder / f"hang-{node}").touch()
    stderr = reaches(command)
    assert re.search(rf"is dissolved: partition \d \({node}\) hangs: no flight has been finished", stderr), stderr
    assert "threads of partition" in stderr and "do not stop; this process ends" in stderr, stderr


def test_a_run_is_interrupted_and_leaves_nothing(adamctl: Runner) -> None:
    command = partitioned(adamctl, 2, 2, "--set", "train.target=1.0")
    command.wait_until(command.trained)
    command.interrupt()
    code, _, stderr = command.wait(60)
    assert code == 130, stderr
    assert not command.family()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("cluster.partitions=3",), r"cluster\.partitions: found 3 with workers = 2"),
        (("cluster.partitions=2", 'train.consistency="sync"'), r"train\.consistency: found sync"),
        (("cluster.partitions=2", 'partition.dense9="units"'), r"partition\.dense9: no such layer"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_started(
    adamctl: Runner, settings: tuple[str, ...], message: str
) -> None:
    options = [option for setting in settings for option in ("--set", setting)]
    code, _, stderr = adamctl.run("train", DIGITS, "--workers", "2", *options)
    assert code == 2
    assert re.search(message, stderr), stderr
