"""Which number of partitions a run has is settled once, by memory first; what does not fit is refused at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adamctl.config.experiment import ClusterConfig, Experiment, TrainConfig
from adamctl.config.partitioning import plan_of
from adamctl.config.resolved import read_resolved, write_resolved
from adamctl.errors import ConfigurationError
from adamctl.launch import partitions as launched
from adamctl.launch.partitions import Place, check_memory, numbers_of, settle, write_record
from adamctl.launch.reckoning import Machine
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import Rate, Rates
from adamctl.model.partition.search import largest_bytes

MODEL = Model((2000,), (Dense(3000), Dense(3000), Softmax(10)))
HERE = Place(Machine(memory_bytes=64 << 30, cores=4))
ELSEWHERE = Place(None)


def experiment(partitions: Any = "auto", workers: int = 4, memory: int | None = None, **more: Any) -> Experiment:
    text = None if memory is None else f"{memory}B"
    cluster = ClusterConfig(workers=workers, threads=1, partitions=partitions, memory_per_worker=text)
    return Experiment(name="cut", model=MODEL, cluster=cluster, **more)


def needed(partitions: int, place: Place = HERE) -> int:
    wanted = experiment(partitions)
    return largest_bytes(plan_of(wanted), place.conditions(wanted, 4))


@dataclass
class Measured:
    """Rates at which everything takes one time, but what is larger than `cache_bytes` takes ten times as long."""

    cache_bytes: int = 1 << 40
    plans: list[int] = field(default_factory=list)

    def __call__(self, plans: Sequence[PartitionPlan], batch: int) -> Rates:
        self.plans = [plan.partitions for plan in plans]
        sizes = [1 << power for power in range(10, 30)]
        stages = [
            Rate(kind, "any", size, batch, 1e9 if size <= self.cache_bytes else 1e8)
            for kind in ("dense", "softmax")
            for size in sizes
        ]
        return Rates(0, 0, 1e12, tuple(stages))


def settled(wanted: Experiment, measure: Callable[..., Rates] | None = None, resume: str = "none") -> tuple[Any, str]:
    notes: list[str] = []
    found = settle(wanted, HERE, resume, notes.append, measure or Measured())
    return found, notes[-1] if notes else ""


def test_a_number_stays_as_it_is() -> None:
    wanted = experiment(2)
    found, note = settled(wanted)
    assert found.experiment is wanted and found.record is None and note == ""


def test_whole_replicas_win_where_they_fit_and_are_as_fast() -> None:
    measure = Measured()
    found, note = settled(experiment(), measure)
    assert found.experiment.cluster.partitions == 1 and measure.plans == [1, 2, 4]
    assert "cluster.partitions = auto: 1: 4 whole replicas of" in note and "each win, with" in note


def test_partitions_win_where_a_part_fits_a_cache() -> None:
    found, note = settled(experiment(), Measured(20 << 20))
    partitions = found.experiment.cluster.partitions
    assert partitions > 1 and f"auto: {partitions}: {4 // partitions} x {partitions} partitions of" in note
    assert found.record["wins"] == "partitions" and found.record["said"] == note
    assert found.record["examples_per_s"] > found.record["replicas"]["examples_per_s"]


def test_the_memory_comes_before_the_speed() -> None:
    """Replicas are faster, and do not fit; nothing is measured where one number is left."""
    measure = Measured()
    found, note = settled(experiment(memory=needed(4)), measure)
    assert found.experiment.cluster.partitions == 4 and measure.plans == []
    assert "auto: 4: partitions of" in note and "a whole replica of" in note and "does not fit" in note
    found, note = settled(experiment(memory=needed(2)), measure)
    assert found.experiment.cluster.partitions in (2, 4) and measure.plans == [2, 4] and "do not fit" in note


def test_only_numbers_that_divide_the_workers_and_that_a_run_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbers_of(experiment(workers=6)) == (1, 2, 3, 6)
    assert numbers_of(experiment(workers=20)) == (1, 2, 4, 5, 10)  # the head has ten units
    assert (
        settled(experiment(workers=1))[1] == "cluster.partitions = auto: 1: no other number is possible with 1 worker"
    )
    monkeypatch.setattr(launched, "SUPPORTED", False)
    assert numbers_of(experiment(workers=6)) == (1,)


@pytest.mark.parametrize(
    "train", [TrainConfig(consistency="sync"), TrainConfig(max_staleness=3), TrainConfig(wire_push="bfloat16")]
)
def test_any_consistency_and_number_type_leaves_all_numbers(train: TrainConfig) -> None:
    assert numbers_of(experiment(workers=6, train=train)) == (1, 2, 3, 6)


def test_coordinator_and_workers_read_the_number_and_the_plan(tmp_path: Path) -> None:
    """The file in the run's folder is what the coordinator reads, and sends to workers."""
    cuts = {"dense1": Cut("units", (1000,)), "softmax1": Cut(whole=1)}
    wanted = experiment(memory=needed(1) - 1, workers=2, partition=cuts)
    found, _ = settled(wanted)
    write_record(found, tmp_path)
    record = json.loads((tmp_path / "partitions.json").read_text())
    read = read_resolved(write_resolved(found.experiment, tmp_path))
    assert read.cluster.partitions == record["partitions"] == 2
    assert plan_of(read).hash == record["plan_hash"] == plan_of(found.experiment).hash
    assert plan_of(read).stages[0].cut == cuts["dense1"]


def test_cuts_that_are_better_than_the_rules_are_kept_with_the_number() -> None:
    whole = {name: Cut(whole=0) for name in ("dense1", "dense2", "softmax1")}
    wanted = experiment(2, workers=2)
    better = plan_of(msgspec.structs.replace(wanted, partition=whole))
    made = launched._with_partitions(wanted, better)
    assert plan_of(made).hash == better.hash and set(made.partition) == set(whole)
    assert launched._with_partitions(wanted, plan_of(wanted)).partition == {}


class Earlier:
    """A checkpoint's manifest, as far as it is read."""

    def __init__(self, found: Experiment) -> None:
        self.experiment = found


@pytest.mark.parametrize(
    ("earlier", "wanted", "kept"),
    [
        (experiment(4), experiment(), True),
        (experiment(2, partition={"dense2": Cut("units", (100,))}), experiment(), True),
        (experiment(3, workers=3), experiment(), False),  # does not divide the workers
        (experiment(2), experiment(memory=needed(4)), False),  # does not fit
        (experiment(2), experiment(partition={"dense2": Cut(whole=1)}), False),  # is not cut as the user wants now
    ],
)
def test_a_run_that_continues_another_keeps_its_partitions(
    monkeypatch: pytest.MonkeyPatch, earlier: Experiment, wanted: Experiment, kept: bool
) -> None:
    monkeypatch.setattr("adamctl.roles.coordinator.checkpoint.manifest.read_manifest", lambda folder: Earlier(earlier))
    found, note = settled(wanted, resume="runs/cut/001/checkpoints/000001")
    assert ("as the run that this one continues" in note) == kept
    assert (plan_of(found.experiment).hash == plan_of(earlier).hash) == kept


def test_partitions_that_do_not_fit_are_refused_with_need_limit_key_and_what_would() -> None:
    limit = needed(4)
    with pytest.raises(ConfigurationError) as refused:
        check_memory(experiment(2, memory=limit), HERE, pytest.fail)
    text = str(refused.value)
    assert text.startswith("cluster.memory_per_worker: ") and f"needs {needed(2) / 1e9:,.2f} GB" in text
    assert f"2 partitions of {limit / 1e9:,.2f} GB each" in text
    assert "the smallest number of partitions that fits is 4: set cluster.partitions = 4, and" in text
    with pytest.raises(ConfigurationError, match="no cut into up to 64 partitions meets it"):
        check_memory(experiment(2, memory=1 << 20), HERE, pytest.fail)


def test_whole_replicas_are_refused_only_where_the_limit_is_set() -> None:
    with pytest.raises(ConfigurationError, match=r"4 workers of .* GB each: .* set cluster\.partitions = 2"):
        check_memory(experiment(1, memory=needed(2)), HERE, pytest.fail)
    notes: list[str] = []
    check_memory(experiment(1), Place(Machine(memory_bytes=4 * needed(2), cores=4)), notes.append)
    assert len(notes) == 1 and notes[0].startswith("warning: cluster.memory_per_worker: ")


def test_workers_of_one_machine_share_its_memory() -> None:
    """More workers have less each, so what fits is looked for among as many workers as a number needs."""
    check_memory(experiment(4), Place(Machine(memory_bytes=4 * needed(4), cores=4)), pytest.fail)
    with pytest.raises(ConfigurationError, match=r"4 partitions of .* GB each"):
        check_memory(experiment(4), Place(Machine(memory_bytes=4 * needed(4) - 4, cores=4)), pytest.fail)


def test_on_a_cluster_only_the_set_limit_counts() -> None:
    check_memory(experiment(1), ELSEWHERE, pytest.fail)
    check_memory(experiment("auto"), ELSEWHERE, pytest.fail)
    with pytest.raises(ConfigurationError, match="does not fit 4 workers"):
        check_memory(experiment(1, memory=needed(2)), ELSEWHERE, pytest.fail)


def test_auto_is_refused_if_no_number_fits() -> None:
    check_memory(experiment(memory=needed(4)), HERE, lambda note: None)
    with pytest.raises(ConfigurationError, match=rf"4 workers of .* needs {needed(4) / 1e9:,.2f} GB; .* fits is"):
        check_memory(experiment(memory=needed(4) - 1), HERE, pytest.fail)


def test_a_limit_that_slow_servers_could_exceed_is_mentioned() -> None:
    notes: list[str] = []
    check_memory(experiment(1, memory=needed(1)), HERE, notes.append)
    assert len(notes) == 1 and "while parameter servers keep up, else up to" in notes[0]
    check_memory(experiment(1, memory=2 * needed(1)), HERE, pytest.fail)


def test_replicas_in_step_have_one_thread() -> None:
    wanted = experiment(1, train=TrainConfig(consistency="sync"))
    assert HERE.conditions(wanted, 1).threads == 1
