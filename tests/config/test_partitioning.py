"""What an experiment may say about partitions, and what is said of one that is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import adamctl
from adamctl.config.conflicts import experiment_problems
from adamctl.config.experiment import ClusterConfig, Experiment, TrainConfig
from adamctl.config.load import load_experiment, parse_setting
from adamctl.config.partitioning import flight_size, flights_of, memory_of_worker, parse_size, plan_of
from adamctl.errors import ConfigurationError
from adamctl.model.partition.cuts import Cut

GOOD = """\
name = "cut"
[model]
input = [28, 28, 1]
layers = [
  { type = "conv2d", filters = 10, kernel = 5 },
  { type = "maxpool2d", size = 2 },
  { type = "dense", units = 40 },
  { type = "dropout", rate = 0.5 },
  { type = "softmax", units = 10 },
]
[cluster]
workers = 4
partitions = 2
memory_per_worker = "1.5 GiB"
[partition]
conv2d1 = "maps"
dense1 = { axis = "units", at = [30] }
softmax1 = { whole = 0 }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cut.toml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path, GOOD)).experiment
    assert experiment.partition == {"conv2d1": "maps", "dense1": Cut("units", (30,)), "softmax1": Cut(whole=0)}
    assert memory_of_worker(experiment) == 3 << 29
    plan = plan_of(experiment)
    assert [str(stage.cut) for stage in plan.stages] == ["maps at 5", "units at 30", "units at 30", "whole in 0"]


def test_one_partition_is_what_nothing_said_means(tmp_path: Path) -> None:
    lines = [line for line in GOOD.splitlines() if "partition" not in line and " = {" not in line]
    plain = load_experiment(write(tmp_path, "\n".join(lines[:-1]))).experiment
    assert plain.partition == {} and plan_of(plain).partitions == 1 and memory_of_worker(plain) == 3 << 29


@pytest.mark.parametrize("wanted", ['"auto"', "1"])
def test_cuts_may_stay_in_a_file_whose_partitions_change(tmp_path: Path, wanted: str) -> None:
    setting = parse_setting(f"cluster.partitions={wanted}")
    experiment = load_experiment(write(tmp_path, GOOD), settings=[setting]).experiment
    assert plan_of(experiment).partitions == 1 and plan_of(experiment, 2).stages[1].cut == Cut("units", (30,))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("partitions = 2", "partitions = 3", 13, "found 3 with workers = 4; a replica is 3 workers; "
         "set cluster.workers to a multiple, such as 6"),
        ("partitions = 2", "partitions = 0", 13, 'partitions: found 0; expected a whole number or "auto", from'),
        ("partitions = 2", 'partitions = "two"', 13, 'found "two"; expected a whole number or "auto"'),
        ("partitions = 2", "flights = 65", 13, 'flights: found 65; expected a whole number or "auto", from 1'),
        ('"1.5 GiB"', '"much"', 14, "memory_per_worker: expected a size above 0, for example \"2GB\" or \"1500MiB\""),
        ('"1.5 GiB"', "2000", 14, "memory_per_worker: found 2000; expected text in quotes"),
        ('conv2d1 = "maps"', 'conv2d2 = "maps"', 16, 'partition.conv2d2: no such layer. Did you mean "conv2d1"?'),
        ('conv2d1 = "maps"', 'conv2d1 = "map"', 16, 'found "map"; expected one of "groups", "maps", "rows", "units",'),
        ('conv2d1 = "maps"', 'conv2d1 = "units"', 16, "found a cut by units; expected rows, maps or whole"),
        ("at = [30]", "at = [41]", 17, "partition.dense1: expected boundaries within its 40 units; found [41]"),
        ("at = [30]", 'at = ["x"]', 17, 'partition.dense1.at: found ["x"]; expected a list of whole numbers'),
        ("at = [30]", "att = [30]", 17, 'partition.dense1.att: unknown key. Did you mean "at"?'),
        ("whole = 0", "whole = 2", 18, "partition.softmax1: expected whole = a partition from 0 to 1; found 2"),
        ("[partition]", "partition = 3\n[train]", 15, "unknown key"),
    ],
)  # fmt: skip
def test_one_clear_message(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    path = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigurationError) as caught:
        load_experiment(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_layer_that_is_wrong_itself_is_named_by_its_own_key(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("kernel = 5", "kernel = 50"))
    with pytest.raises(ConfigurationError) as caught:
        load_experiment(path)
    (line,) = str(caught.value).splitlines()
    assert "model.layers[0]" in line


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2_000_000_000), ("1500 MiB", 1500 << 20), ("0.5kib", 512), ("7 B", 7), ("1TB", 10**12)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2", "GB", "-2GB", "2 XB", "0GB", "1e3MB", "2GB2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size above 0"):
        parse_size(text)


def test_flights_are_one_more_than_threads_and_two_at_least() -> None:
    model = adamctl.Sequential([adamctl.Softmax(2)], input_shape=(3,))
    auto, three = (
        Experiment(name="f", model=model, cluster=ClusterConfig(flights=n))
        for n in ("auto", 3)  # type: ignore[arg-type]
    )
    assert [flights_of(auto, threads) for threads in (1, 2, 7)] == [2, 3, 8]
    assert flights_of(three, 7) == 3


@pytest.mark.parametrize(("batch", "flights", "size"), [(64, 2, 32), (64, 3, 32), (12, 5, 3), (7, 2, 7), (7, 7, 1)])
def test_in_step_a_flight_is_an_equal_part_of_a_batch(batch: int, flights: int, size: int) -> None:
    model = adamctl.Sequential([adamctl.Softmax(2)], input_shape=(3,))
    cluster = ClusterConfig(flights=flights)
    free, in_step = (
        Experiment(name="f", model=model, cluster=cluster, train=TrainConfig(batch=batch, consistency=consistency))
        for consistency in ("async", "sync")  # type: ignore[arg-type]
    )
    assert flight_size(free, 1) == batch and flight_size(in_step, 1) == size


def test_cuts_made_in_python_are_checked_like_those_of_a_file() -> None:
    model = adamctl.Sequential([adamctl.Dense(9), adamctl.Softmax(2)], input_shape=(3,))
    cluster = ClusterConfig(workers=2, partitions=2)
    good = Experiment(name="p", model=model, cluster=cluster, partition={"dense1": adamctl.Cut("units", at=[4])})
    assert experiment_problems(good) == []
    bad = Experiment(name="p", model=model, cluster=cluster, partition={"dense1": adamctl.Cut("units", at=[4, 5])})
    assert [str(problem) for problem in experiment_problems(bad)] == [
        "partition.dense1: expected 1 boundaries for 2 partitions; found 2: [4, 5]"
    ]
    wrong = Experiment(name="p", model=model, partition={"dense1": adamctl.Cut("columns")})
    assert 'partition.dense1.axis: found "columns"' in str(experiment_problems(wrong)[0])
