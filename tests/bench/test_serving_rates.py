"""Rates of servers and data servers are measured for the rule and the data that an experiment has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from adamctl.bench import serving_rates
from adamctl.bench.serving_rates import measure_serving_rates, server_rates
from adamctl.config.load import load_experiment
from adamctl.model.rule import RuleConfig
from adamctl.model.scaling.rates import check_serving_rates

DIGITS = """
name = "digits"
[model]
input = [8, 8, 1]
layers = [{ type = "softmax", units = 10 }]
[data]
format = "digits"
"""


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ELEMENTS", 1 << 14), ("FACTOR_SIDE", 64), ("RUNS", 2), ("DATA_S", 0.01)):
        monkeypatch.setattr(serving_rates, name, value)


@pytest.mark.parametrize(("rule", "vectors"), [("sgd", 0), ("momentum", 1), ("adam", 2)])
def test_a_rules_state_is_counted(rule: str, vectors: int) -> None:
    found = server_rates(RuleConfig(rule))
    assert (found.rule, found.state_vectors) == (rule, vectors)
    assert found.apply_per_s <= found.apply_more_per_s <= serving_rates.QUEUED * found.apply_per_s * (1 + 1e-9)


def test_factors_are_multiplied_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds, threads = serving_rates._seconds, []

    def watched(call: Callable[[], object], clock: Callable[[], float]) -> float:
        threads.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        return seconds(call, clock)

    monkeypatch.setattr(serving_rates, "_seconds", watched)
    with threadpool_limits(limits=2, user_api="blas"):
        server_rates(RuleConfig("sgd"))
        assert threads[-1] == {1}


def test_data_are_read_as_a_data_server_reads_them(tmp_path: Path) -> None:
    (tmp_path / "digits.toml").write_text(DIGITS)
    found = measure_serving_rates(load_experiment(tmp_path / "digits.toml").experiment)
    check_serving_rates(found)
    assert found.data is not None
    assert found.data.examples > 1000
    assert found.data.example_bytes == pytest.approx(64, abs=20)


def test_without_data_there_are_no_rates_of_data_servers(tmp_path: Path) -> None:
    text = DIGITS.replace('format = "digits"', 'format = "npz"\nsource = "nowhere.npz"')
    (tmp_path / "nowhere.toml").write_text(text)
    said: list[str] = []
    found = measure_serving_rates(load_experiment(tmp_path / "nowhere.toml").experiment, said.append)
    assert found.data is None
    assert any("nowhere.npz" in line for line in said)
