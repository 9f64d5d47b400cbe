"""A run that a machine cannot hold is refused before anything starts, and says which key to change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig
from adamctl.config.load import load_experiment, parse_setting
from adamctl.errors import ConfigurationError
from adamctl.launch.reckoning import Machine, check_sizes, memory_of
from adamctl.model.description import Dense, Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.optimizers.configured import check_copies

EXAMPLES = Path(__file__).parents[2] / "examples"
MACHINE = Machine(memory_bytes=24 << 30, cores=2)


def experiment(name: str = "digits", *settings: str) -> Experiment:
    return load_experiment(EXAMPLES / f"{name}.toml", settings=[parse_setting(text) for text in settings]).experiment


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.toml")))
def test_every_example_fits(name: str) -> None:
    check_sizes(experiment(name), MACHINE)


@pytest.mark.parametrize("key", ["workers", "ps", "data"])
def test_a_million_processes_are_refused(key: str) -> None:
    wanted = experiment("digits", f"cluster.{key}=1000000")
    with pytest.raises(ConfigurationError, match=rf"cluster\.{key} = 1000000: .* 2 cores it may start 32\. Lower"):
        check_sizes(wanted, MACHINE)


def test_threads_are_bounded_by_cores() -> None:
    with pytest.raises(ConfigurationError, match=r"cluster\.threads = 5000: .* 32 threads"):
        check_sizes(experiment("digits", "cluster.threads=5000"), MACHINE)


def test_a_batch_that_does_not_fit_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"batches .*; this machine has 25\.8 GB\. Lower train\.batch"):
        check_sizes(experiment("digits", "train.batch=1000000000000"), MACHINE)


def test_a_model_that_does_not_fit_is_named() -> None:
    wanted = experiment("digits")
    layers = (*wanted.model.layers[:-1], msgspec.structs.replace(wanted.model.layers[-1], units=2_000_000))
    small = Machine(memory_bytes=1 << 30, cores=2)
    model = msgspec.structs.replace(wanted.model, layers=layers)
    with pytest.raises(ConfigurationError, match=r"Lower the sizes of model\.layers"):
        check_sizes(msgspec.structs.replace(wanted, model=model), small)


def test_a_layer_of_a_hundred_billion_units_is_refused_at_once() -> None:
    wanted = experiment("digits")
    layers = (*wanted.model.layers[:-1], msgspec.structs.replace(wanted.model.layers[-1], units=100_000_000_000))
    huge = msgspec.structs.replace(wanted, model=msgspec.structs.replace(wanted.model, layers=layers))
    with pytest.raises(ConfigurationError, match=r"softmax1\.weight.* elements"):
        check_sizes(huge, MACHINE)  # to cut it into shards would take longer than a test may


def test_copies_and_the_state_of_the_rule_count() -> None:
    one = {part.what: part.size_bytes for part in memory_of(experiment("digits"), 1)}
    more = ("cluster.ps=3", "cluster.replication=3", 'optimizer.type="adam"', "cluster.workers=2")
    other = {part.what: part.size_bytes for part in memory_of(experiment("digits", *more), 1)}
    assert other["parameter servers"] >= 9 * one["parameter servers"]
    assert other["workers"] == 2 * one["workers"]


BATCH = Experiment(name="x", model=Model((8, 8, 1), (Dense(256), Softmax(10))))
PARAMETERS = build_layout(BATCH.model, 3).flat_size


@pytest.mark.parametrize(
    ("optimizer", "copies", "vectors"),
    [
        (OptimizerConfig(type="lbfgs", history=10), 1, 2 * 10 + 7),
        (OptimizerConfig(type="lbfgs", history=3), 3, 3 * (2 * 3 + 2) + 5),
        (OptimizerConfig(type="cg"), 1, 3 + 2 + 2),
    ],
)
def test_vectors_of_a_batch_algorithm_count_and_copies_have_those_that_are_kept(
    optimizer: OptimizerConfig, copies: int, vectors: int
) -> None:
    cluster = ClusterConfig(ps=3, replication=copies)
    parts = memory_of(msgspec.structs.replace(BATCH, optimizer=optimizer, cluster=cluster), 1)
    assert {part.what: part.size_bytes for part in parts}["parameter servers"] == 4 * vectors * PARAMETERS


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [
        (OptimizerConfig(type="lbfgs", history=31), r"optimizer\.history"),
        (OptimizerConfig(type="cg"), "the sizes of"),
    ],
)
def test_vectors_that_do_not_fit_name_what_makes_them_many(optimizer: OptimizerConfig, key: str) -> None:
    model = Model((100, 100, 1), (Dense(10_000), Softmax(10)))
    wanted = msgspec.structs.replace(BATCH, model=model, optimizer=optimizer, cluster=ClusterConfig(threads=1))
    with pytest.raises(ConfigurationError, match=rf"parameter servers .*Lower {key}"):
        check_sizes(wanted, Machine(memory_bytes=1 << 30, cores=2))


def test_a_replica_of_partitions_counts_once_and_auto_is_at_least_one_replica() -> None:
    def workers(*settings: str) -> int:
        parts = {part.what: part.size_bytes for part in memory_of(experiment("digits", *settings), 1)}
        return parts["workers"]

    assert workers("cluster.workers=4", "cluster.partitions=2") == 2 * workers()
    assert workers("cluster.workers=4", "cluster.partitions=auto") == workers()


def test_a_shard_that_could_not_be_copied_is_refused() -> None:
    """A lost copy of it could never be made again; a smaller network has smaller shards, with which it can."""
    base = experiment("digits_lbfgs", "cluster.ps=3", "cluster.replication=3", "optimizer.history=20")
    check_sizes(base, MACHINE)
    layers = (*base.model.layers[:-1], Dense(1000), Dense(40_000), base.model.layers[-1])
    wide = msgspec.structs.replace(base, model=msgspec.structs.replace(base.model, layers=layers))
    with pytest.raises(
        ConfigurationError, match=r"cluster\.replication: found 3; .* 31 MiB, .* in 42 arrays; .*history"
    ):
        check_copies(wide, build_layout(wide.model, 3))
    for key, value in (("history", 10), ("type", "adam")):
        optimizer = msgspec.structs.replace(OptimizerConfig(type="lbfgs"), **{key: value})
        fitting = msgspec.structs.replace(wide, optimizer=optimizer)
        check_copies(fitting, build_layout(fitting.model, 3))
    alone = msgspec.structs.replace(wide, cluster=msgspec.structs.replace(wide.cluster, replication=1))
    check_copies(alone, build_layout(alone.model, 3))
