"""`adamctl plan --machines`: clusters of any size, what binds them, and what failures cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from tests.cli.test_plan import EXPERIMENT, RATES, measured

SERVING = {
    "servers": {
        "rule": "sgd", "state_vectors": 0, "apply_per_s": 1e9, "apply_more_per_s": 2e9, "products_per_s": 1e10,
    },
    "data": {"examples_per_s": 5e3, "example_bytes": 1728.0, "examples": 60000},
}  # fmt: skip


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "cut.toml").write_text(EXPERIMENT)
    (tmp_path / "rates.json").write_text(json.dumps({"rates": RATES, "serving_rates": SERVING}))
    return str(tmp_path / "cut.toml"), str(tmp_path / "rates.json")


def invoke(files: tuple[str, str], *arguments: str) -> Result:
    result = CliRunner().invoke(
        application, ["plan", files[0], "--rates", files[1], "--partitions", "1,2", *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result


def figures(files: tuple[str, str], *arguments: str) -> dict[str, Any]:
    return json.loads(invoke(files, *arguments, "--json").stdout)


def refusal(files: tuple[str, str], *arguments: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        CliRunner().invoke(application, ["plan", files[0], "--rates", files[1], *arguments], catch_exceptions=False)
    return str(caught.value)


def test_every_number_of_machines_has_a_row_and_what_failures_cost_there(files: tuple[str, str]) -> None:
    found = figures(files, "--machines", "1,4,40", "--spread", "0.1", "--link", "1Gbit")
    one, four, forty = found["machines"]
    assert [row["machines"] for row in found["machines"]] == [1, 4, 40]
    assert one["together"] and not four["together"] and not forty["together"]
    for row in (four, forty):
        assert row["workers"] + row["servers"] + row["data_servers"] <= row["machines"]
        assert [cost["what"] for cost in row["failures"]] == ["worker", "server", "data server", "machine"]
    assert one["examples_per_s"] < four["examples_per_s"] < forty["examples_per_s"]
    assert found["serving_rates"] == SERVING
    assert found["spread"] == 0.1


def test_it_is_the_same_for_the_same_seed(files: tuple[str, str]) -> None:
    arguments = ("--machines", "12", "--spread", "0.2", "--jitter", "0.1")
    once, again, other = (figures(files, *arguments, "--seed", seed) for seed in ("1", "1", "2"))
    assert once["machines"] == again["machines"] != other["machines"]


def test_what_it_printed_is_what_it_takes(files: tuple[str, str], tmp_path: Path) -> None:
    found = figures(files, "--machines", "6")
    (tmp_path / "again.json").write_text(json.dumps(found))
    assert figures((files[0], str(tmp_path / "again.json")), "--machines", "6")["machines"] == found["machines"]


def test_what_a_run_has_measured_is_taken(files: tuple[str, str], tmp_path: Path) -> None:
    measured(tmp_path, files, 1e-6, 1e-6)
    fast = figures(files, "--machines", "4", "--measured", "cut", "--run-dir", str(tmp_path))
    measured(tmp_path, files, 10.0, 10.0)
    slow = figures(files, "--machines", "4", "--measured", "cut", "--run-dir", str(tmp_path))
    assert slow["measured"]["compute_s_per_example"] == [0.01, 0.01]
    assert fast["machines"][0]["examples_per_s"] > 2 * slow["machines"][0]["examples_per_s"]
    assert figures(files, "--machines", "4")["measured"] is None


def test_people_get_tables(files: tuple[str, str]) -> None:
    text = invoke(files, "--machines", "1,6", "--set", "cluster.store=none").stdout
    assert "* with a server and a data server on the workers' machines" in text
    assert "a machine with one of each" in text and "the run ends" in text
    assert "Simulated, not measured." in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_picture_is_written(files: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    invoke(files, "--machines", "2,6", "--plot", str(tmp_path / "scaling.svg"))
    assert "data servers" in (tmp_path / "scaling.svg").read_text() or (tmp_path / "scaling.svg").stat().st_size > 5000


def test_numbers_that_are_asked_for_are_used(files: tuple[str, str]) -> None:
    row = figures(files, "--machines", "10", "--servers", "3", "--data-servers", "2")["machines"][0]
    assert (row["servers"], row["data_servers"]) == (3, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--spread", "0.1"], "--spread: expected --machines with it"),
        (["--servers", "2"], "--servers: expected --machines with it"),
        (["--machines", "3", "--partitions", "4"], "a replica of 4 workers, its servers and data servers need"),
    ],
)
def test_what_cannot_be_planned_is_refused(files: tuple[str, str], arguments: list[str], message: str) -> None:
    assert message in refusal(files, *arguments)


def test_batch_algorithms_are_not_simulated(files: tuple[str, str]) -> None:
    without = Path(files[0]).read_text().replace('  { type = "dropout", rate = 0.5 },\n', "")
    Path(files[0]).write_text(without)
    assert "bundles of a batch algorithm" in refusal(files, "--machines", "4", "--set", "optimizer.type=lbfgs")


def test_rates_of_servers_that_cannot_be_are_refused(files: tuple[str, str]) -> None:
    wrong = {**SERVING, "servers": {**SERVING["servers"], "apply_per_s": 0}}  # type: ignore[dict-item]
    Path(files[1]).write_text(json.dumps({"rates": RATES, "serving_rates": wrong}))
    assert "expected a finite number above 0 for apply_per_s" in refusal(files, "--machines", "4")
