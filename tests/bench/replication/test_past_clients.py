"""The benchmark of past clients, run on few: both jobs are measured, and their sums checked."""

from __future__ import annotations

import pytest

from adamctl.bench.replication.past_clients import PastClientsSettings, run_past_clients_benchmark
from adamctl.errors import ConfigurationError


def test_a_job_that_remembers_nobody_is_measured_beside_one_that_remembers_all() -> None:
    report = run_past_clients_benchmark(PastClientsSettings(clients=5, shards=6, rounds=1, seconds=0.2))
    (row,) = report["results"]
    assert (row["case"], row["clients"], row["shards"]) == ("past-clients", 5, 6)
    assert row["fresh_s"] > 0 and row["ratio"] == row["remembering_s"] / row["fresh_s"]


@pytest.mark.slow
def test_pushes_go_on_where_many_small_shards_remember_thousands_of_clients() -> None:
    """A body of memory beyond what a frame takes would stop them for ever; the benchmark checks the sums at its end."""
    settings = PastClientsSettings(clients=5000, shards=1300, rounds=1, seconds=2.0)
    (row,) = run_past_clients_benchmark(settings)["results"]
    assert (row["clients"], row["shards"]) == (5000, 1300) and row["remembering_s"] > 0


@pytest.mark.parametrize("wrong", [{"clients": 0}, {"shards": 0}, {"rounds": 0}, {"seconds": 0.0}])
def test_what_cannot_be_measured_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError):
        PastClientsSettings(**wrong)  # type: ignore[arg-type]
