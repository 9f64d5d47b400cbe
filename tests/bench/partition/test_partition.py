"""`bench partition` runs whole replicas and partitions of a small network, and counts what they did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.bench import namespaces
from adamctl.bench.partition.machines import Machines, Pauses
from adamctl.bench.partition.partition import busiest_bytes, run_partition_benchmark, settings_of
from adamctl.config.load import load_experiment, parse_setting
from adamctl.errors import ConfigurationError
from adamctl.roles.worker.partition.sleeping import NAMELESS

EXAMPLES = Path(__file__).resolve().parent.parent.parent.parent / "examples"


@pytest.mark.parametrize("counts", [[3], pytest.param([2, 3], marks=pytest.mark.slow)])
def test_the_report_has_a_row_for_each_setting(counts: list[int]) -> None:
    """Over TCP, what is sent is what the plan says."""
    experiment = load_experiment(EXAMPLES / "digits.toml", settings=[parse_setting("optimizer.clip_norm=1")]).experiment
    report = run_partition_benchmark(
        experiment, counts, threads=2, batch=4, flights=[2], transports=["shared", "tcp"], rounds=1, seconds=0.05
    )
    rows = [(row["partitions"], row["flights"], row["transport"]) for row in report["results"]]
    shared = "shared memory" if NAMELESS else "Unix socket"
    assert rows == [(1, 0, None), *((count, 2, how) for count in counts for how in (shared, "TCP"))]
    for row in report["results"]:
        assert row["images_per_s"] > 0 and row["ratio"] > 0
        assert (row["planned_bytes_per_flight"] > 0) == (row["partitions"] > 1)
        assert 0 <= row["waiting_share"] < 1
        if row["transport"] == "TCP":
            assert row["sent_bytes_per_flight"] == row["planned_bytes_per_flight"]
            assert 0 < row["framing_share"] < 1
        elif row["transport"] is None or NAMELESS:
            assert row["sent_bytes_per_flight"] is None
    assert report["results"][0]["ratio"] == 1


def test_pauses_and_predictions_have_columns_of_their_own() -> None:
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    report = run_partition_benchmark(
        experiment, [2], threads=2, batch=4, flights=[1, 2], rounds=1, seconds=0.05,
        machines=Machines(pauses=Pauses(0.3, 0.005)),
    )  # fmt: skip
    gains = [row.get("over_fewest_flights") for row in report["results"]]
    assert gains[:2] == [None, None] and gains[2] > 0


def test_links_are_measured_beside_what_has_none() -> None:
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    machines = Machines(links_bytes_per_s=(1e6, 2e6), transfer_share=0.5)
    settings = settings_of(experiment, [2, 4], 2, [1, 3], ["tcp"], machines)
    found = [(one.kind.partitions, one.kind.flights, one.link_bytes_per_s, one.matched) for one in settings]
    each = [(None, False), (1e6, False), (2e6, False), (None, True)]
    assert found == [(1, 0, None, False), *((p, f, *one) for p in (2, 4) for f in (1, 3) for one in each)]
    with pytest.raises(ConfigurationError, match="--transport shared: only TCP goes through links"):
        settings_of(experiment, [2], 2, [1], ["shared"], machines)


@pytest.mark.skipif(bool(namespaces.missing()), reason="needs network namespaces")
def test_partitions_with_links_of_their_own() -> None:
    """On a link so slow that it binds, a flight takes what its bytes take."""
    command = [sys.executable, "-m", "adamctl", "bench", "partition", str(EXAMPLES / "digits.toml"), "--json"]
    command += ["--partition-counts", "2", "--flight-counts", "3", "--examples", "4", "--rounds", "1"]
    command += ["--seconds", "0.2", "--link", "10Mbit", "--transfer-share", "1", "--predict"]
    environment = {key: value for key, value in os.environ.items() if key != namespaces.INSIDE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    _, free, slow, matched = json.loads(done.stdout)["results"]
    assert (free["link_mbit_per_s"], slow["link_mbit_per_s"]) == (None, 10)
    assert slow["transport"] == "TCP" and slow["sent_bytes_per_flight"] == slow["planned_bytes_per_flight"]
    experiment = load_experiment(EXAMPLES / "digits.toml").experiment
    least_s = busiest_bytes(experiment, 2, 4) / 1.25e6
    assert 4 / slow["images_per_s"] > 0.5 * least_s  # the bucket is full when a round begins
    assert matched["link_mbit_per_s"] > 0 and "hidden_share" in matched
    assert {row["binds"].split()[0] for row in (free, slow, matched)} <= {"compute", "link", "too"}
