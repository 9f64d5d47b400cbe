"""Replicas of several workers, as a user starts them."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest

from adamctl.roles.coordinator.checkpoint.manifest import find_latest
from adamctl.roles.ps.client.parameter_client import load_parameters
from adamctl.roles.worker.partition.sleeping import NAMELESS
from tests.e2e import hang
from tests.e2e.conftest import EXAMPLES, Command, Runner
from tests.e2e.test_by_hand import Cluster

DIGITS = EXAMPLES / "digits.toml"
QUICK = (
    "--json", "--threads", "1", "--target", "0.95", "--passes", "400", "--set", "train.evaluate_every=1", "--set",
    "optimizer.schedule.type=constant", "--set", "optimizer.lr=0.05", "--set", "train.batch=32",
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
    top1 = json.loads(stdout)["top1"]
    assert top1 >= 0.95, stdout
    code, _, stderr = adamctl.run(  # a little better than before, or it would have nothing left to do
        "train", DIGITS, "--resume", "digits/001", "--threads", "1", "--set", f"train.target={top1 + 0.0025:.4f}",
        "--json", "--passes",
        "400", "--set", "train.evaluate_every=1",
    )  # fmt: skip
    assert code == 0, stderr


def test_auto_is_settled_once_and_the_run_that_continues_keeps_it(adamctl: Runner) -> None:
    """Larger layers, so that a part fits where the whole does not; each process has about 210 MB of its own.

    A layer 150 times as wide diverges at the example's rate: it takes a lower one.
    """
    wide = ("--set", "model.layers.4.units=20000", "--set", 'cluster.memory_per_worker="440MB"', "--threads", "1")
    auto = (
        "--workers", "2", "--set", "cluster.partitions=auto", "--set", "train.batch=40", "--set", "optimizer.lr=0.003",
        "--json", *wide,
    )  # fmt: skip
    code, stdout, stderr = adamctl.run("train", DIGITS, *auto, "--passes", "1")
    assert code == 0, stderr
    assert "cluster.partitions = auto: 2: partitions of" in stderr and "takes part as partition 1" in stderr
    first = json.loads(stdout)
    record = json.loads(Path(first["run_folder"], "partitions.json").read_text())
    assert first["partitions"] == record["partitions"] == 2 and first["plan_hash"] == record["plan_hash"]
    assert "partitions = 2" in Path(first["run_folder"], "experiment.toml").read_text()
    code, stdout, stderr = adamctl.run("train", DIGITS, *auto, "--passes", "2", "--resume", "digits/001")
    assert code == 0, stderr
    assert "auto: 2, as the run that this one continues" in stderr
    summary = json.loads(stdout)
    assert summary["plan_hash"] == first["plan_hash"] and summary["best_test_top1"] > 0.2


def test_two_replicas_of_two_partitions_train_together(adamctl: Runner) -> None:
    stderr = reaches(partitioned(adamctl, 4, 2, "--set", "train.protocol=factors"))
    assert "takes part as partition 1 of replica 1" in stderr


@pytest.mark.slow
def test_replicas_of_partitions_in_step_repeat_bit_for_bit_and_are_as_good_as_one_process(adamctl: Runner) -> None:
    steps = ("--set", "train.consistency=sync", "--json", "--threads", "1", "--passes", "4")
    found: list[bytes] = []
    for _ in range(2):
        code, stdout, stderr = adamctl.run(
            "train", DIGITS, *steps, "--workers", "2", "--set", "cluster.partitions=2", "--set", "optimizer.clip_norm=5"
        )
        assert code == 0, stderr
        summary = json.loads(stdout)
        checkpoint = find_latest(Path(summary["run_folder"]))
        assert checkpoint is not None
        found.append(b"".join(values.tobytes() for values in load_parameters(checkpoint).values()))
    assert found[0] == found[1]
    code, stdout, stderr = adamctl.run("train", DIGITS, *steps, "--workers", "1", "--set", "optimizer.clip_norm=5")
    assert code == 0, stderr
    assert abs(json.loads(stdout)["best_test_top1"] - summary["best_test_top1"]) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("train.consistency=sync",),
        ("train.max_staleness=2",),
        ("train.wire_push=bfloat16", "train.wire_pull=bfloat16"),
        ("train.consistency=sync", "train.wire_push=float16"),
    ],
    ids="+".join,
)
@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_a_member_is_killed_whatever_the_consistency(
    adamctl: Runner, settings: tuple[str, ...], transport: str
) -> None:
    options = [option for setting in settings for option in ("--set", setting)]
    command = partitioned(adamctl, 4, 2, *options, ADAMCTL_TRANSPORT=transport)
    command.wait_until(command.trained)
    command.roles("worker")[1].kill()
    assert "is dissolved: partition" in reaches(command)


def logs_of_workers(adamctl: Runner) -> str:
    found = [path.read_text() for path in adamctl.folder.rglob("worker*.log")]
    assert found, "every worker has a log"
    return "\n".join(found)


@pytest.mark.parametrize("transport", ["auto", pytest.param("tcp", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_a_partition_is_killed_and_the_replica_goes_on_without_losing_a_range(
    adamctl: Runner, seed: int, transport: str
) -> None:
    """Over TCP its block may be half sent."""
    command = partitioned(adamctl, 2, 2, "--seed", str(seed), ADAMCTL_TRANSPORT=transport)
    command.wait_until(command.trained)
    random.Random(seed).choice(command.roles("worker")).kill()
    stderr = reaches(command)
    assert "is dissolved: partition" in stderr
    how = "TCP" if transport == "tcp" or not NAMELESS else "shared memory"
    assert set(re.findall(r"blocks to and from partition \d \(.*\) go by (.*)", logs_of_workers(adamctl))) == {how}


@pytest.mark.parametrize("node", ["worker-1", pytest.param("worker-2", marks=pytest.mark.slow)])
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
        (("cluster.partitions=1", 'cluster.memory_per_worker="100MB"'), r"2 workers of 0\.10 GB each: .* no cut"),
        (("cluster.partitions=auto", 'cluster.memory_per_worker="100MB"'), r"cluster\.memory_per_worker: .* no cut"),
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


def test_a_replica_of_two_machines_trains(adamctl: Runner, tmp_path: Path) -> None:
    """One worker runs where the machine has another name, so it shares no memory and no Unix socket with anybody."""
    elsewhere = tmp_path / "site"
    elsewhere.mkdir()
    (elsewhere / "sitecustomize.py").write_text("import platform\nplatform.node = lambda: 'elsewhere'\n")
    cluster = Cluster(adamctl)
    cluster.start("ps", "--name", "ps-1")
    cluster.start("data", "--name", "data-1")
    path = os.pathsep.join([str(elsewhere), *filter(None, [os.environ.get("PYTHONPATH")])])
    start = ("worker", "start", "--threads", "1", "--once", "--name")
    workers = [
        adamctl.start(*start, "worker-1", **cluster.environment),
        adamctl.start(*start, "worker-2", **cluster.environment, PYTHONPATH=path),
    ]
    folder = adamctl.folder / "by-hand"
    settings = ["--set", "cluster.workers=2", "--set", "cluster.partitions=2", "--set", "train.target=0.9", *QUICK[-8:]]
    coordinator = cluster.start("coordinator", "--experiment", str(DIGITS), *settings, "--run-dir", str(folder))
    code, _, stderr = coordinator.wait()
    assert code == 0, stderr
    assert json.loads((folder / "summary.json").read_text())["best_test_top1"] > 0.5
    for worker in workers:
        code, _, stderr = worker.wait()
        assert code == 0 and "go by TCP" in stderr, stderr
