"""`adamctl plan` and `adamctl summary --partitions`: what they print for people and programs, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from adamctl.model.partition.rules import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples"
EXPERIMENT = """
name = "cut"
[model]
input = [24, 24, 3]
layers = [
  { type = "conv2d", filters = 8, kernel = 5, activation = "relu" },
  { type = "maxpool2d", size = 2 },
  { type = "dense", units = 40 },
  { type = "dropout", rate = 0.5 },
  { type = "softmax", units = 10 },
]
[train]
batch = 8
[cluster]
threads = 1
"""
RATES = {
    "l2_bytes": 1 << 20,
    "l3_bytes": 1 << 25,
    "update_per_s": 1e9,
    "stages": [
        {"kind": kind, "label": "any", "working_set_bytes": 1 << 16, "batch": 8, "amount_per_s": 1e9}
        for kind in ("conv2d+maxpool2d", "dense", "dropout", "softmax")
    ],
}


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "cut.toml").write_text(EXPERIMENT)
    (tmp_path / "rates.json").write_text(json.dumps(RATES))
    return str(tmp_path / "cut.toml"), str(tmp_path / "rates.json")


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(application, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def plan(files: tuple[str, str], *arguments: str) -> dict[str, Any]:
    return json.loads(invoke("plan", files[0], "--rates", files[1], *arguments, "--json").stdout)


def summary(files: tuple[str, str], *arguments: str) -> dict[str, Any]:
    text = invoke("summary", files[0], "--rates", files[1], *arguments, "--json").stdout
    return json.loads(text)["partitioning"]


def test_plan_compares_partitions_with_whole_replicas(files: tuple[str, str]) -> None:
    found = plan(files, "--partitions", "1,2,4", "--link", "100Mbit", "--latency", "1ms")
    assert [choice["workers"] for choice in found["choices"]] == [1, 2, 4]
    assert (found["link_bytes_per_s"], found["latency_s"]) == (12.5e6, 1e-3)
    one, two, _ = found["choices"]
    assert one["partitions"] == one["replicas"]
    rates = [one["replicas"]["examples_per_s"], two["replicas"]["examples_per_s"]]
    assert rates[1] == pytest.approx(rates[0])  # the server's link is full with one
    fastest = max(choice[kind]["examples_per_s"] for choice in found["choices"] for kind in ("partitions", "replicas"))
    assert found["winner"]["examples_per_s"] >= 0.99 * fastest
    assert set(two["cuts"]) == {"conv2d1", "dense1", "dropout1", "softmax1"}


def test_slow_links_are_what_binds(files: tuple[str, str]) -> None:
    slow, fast = (plan(files, "--partitions", "2", "--link", link) for link in ("1Mbit", "100Gbit"))
    assert "link" in slow["choices"][0]["partitions"]["bound_by"]
    assert "link" not in fast["choices"][0]["partitions"]["bound_by"]
    late = plan(files, "--partitions", "2", "--link", "100Gbit", "--latency", "1s", "--set", 'partition.dense1="units"')
    assert late["choices"][0]["partitions"]["bound_by"] == "too few flights: 2"


def test_what_plan_prints_is_a_file_of_rates(files: tuple[str, str], tmp_path: Path) -> None:
    first = invoke("plan", files[0], "--partitions", "2", "--json").stdout
    (tmp_path / "again.json").write_text(first)
    again = plan((files[0], str(tmp_path / "again.json")), "--partitions", "2")
    assert again == json.loads(first)


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        ("mnist", "10"),
        *(
            pytest.param(*wide, marks=pytest.mark.slow)
            for wide in (("mnist", "4,10"), ("imagenet", "1,4"), ("speech", "1,4"))
        ),
    ],
)
def test_tables_fit_a_terminal(files: tuple[str, str], name: str, partitions: str) -> None:
    rates = {**RATES, "stages": [*RATES["stages"], {**RATES["stages"][0], "kind": "conv2d"}]}  # type: ignore[misc,dict-item]
    Path(files[1]).write_text(json.dumps(rates))
    exp = str(EXAMPLES / f"{name}.toml")
    text = invoke("plan", exp, "--rates", files[1], "--partitions", partitions).stdout
    assert max(map(len, text.splitlines())) <= 80 and "fastest that fits" in text
    assert all(f"{number} partitions" in text for number in partitions.split(",") if number != "1")
    whole, _, cut = invoke("summary", exp, "--rates", files[1], "--partitions", "4").stdout.partition("4 partitions")
    assert whole and max(map(len, cut.splitlines())) <= 80 and "bound by: " in cut


def test_better_cuts_are_printed_as_a_table_of_an_experiment(files: tuple[str, str], tmp_path: Path) -> None:
    arguments = ("--rates", files[1], "--partitions", "2", "--link", "100Gbit", "--latency", "1s")
    text = invoke("plan", files[0], *arguments).stdout
    table = text[text.index("[partition]") : text.index("fastest")].strip()
    (tmp_path / "better.toml").write_text(EXPERIMENT + "workers = 2\npartitions = 2\n" + table)
    found = plan((str(tmp_path / "better.toml"), files[1]), *arguments[2:])["choices"][0]
    assert found["changed"] == [] and found["cuts"] == plan(files, *arguments[2:])["choices"][0]["cuts"]


def test_a_number_into_which_the_network_cannot_be_cut_is_left_out(files: tuple[str, str]) -> None:
    arguments = ("plan", files[0], "--rates", files[1], "--partitions", "1,16")
    text = invoke(*arguments).stdout
    assert "not 16 partitions: partition.conv2d1: found 16 partitions for 10 rows" in text
    assert plan(files, "--partitions", "16")["choices"][0]["partitions"] is None


def test_summary_shows_each_part(files: tuple[str, str]) -> None:
    found = summary(files, "--partitions", "2", "--set", "train.protocol=gradient")
    made = make_plan(experiment_model(files[0]), 2)
    assert found["plan_hash"] == made.hash and found["head"] == "gather"
    convolution, dense, dropout, softmax = found["stages"]
    assert convolution["cut"] == {"axis": "rows", "at": [5]} and convolution["layers"] == [0, 1]
    assert [part["parameters"] for part in convolution["parts"]] == [8 * 76, 8 * 76]
    assert dense["parts"][1]["range"] == [20, 40] and dense["parts"][0]["cache"] == "L2"
    assert [part["up_bytes"] for part in dense["parts"]] == [4 * 5 * 10 * 8] * 2
    assert (dropout["parts"][0]["up_bytes"], softmax["parts"][0]["up_bytes"]) == (0, 4 * (20 + 5))
    for number, member in enumerate(found["members"]):
        parts = [stage["parts"][number] for stage in found["stages"]]
        assert member["up_bytes"] == sum(part["up_bytes"] for part in parts)
        assert member["down_bytes"] == sum(part["down_bytes"] for part in parts)
        assert member["parameters"] == sum(part["parameters"] for part in parts)
        assert member["memory_bytes"] == sum(member["memory"].values())
        assert member["fetch_bytes"] == 4 * member["parameters"]
        assert member["examples_per_s"] == pytest.approx(8 / member["compute_s"])
    pushed = sum(member["push_bytes"] for member in found["members"])
    assert pushed == 4 * (8 * 76 + 40 * 801 + 10 * 41)  # each parameter once
    # Half of its partial gradient goes to the owner of the other half, and the sum of its own half goes back.
    assert found["members"][0]["partial_gradient_bytes"] == 4 * 8 * 76
    assert found["fits"] and found["bound_by"]


def experiment_model(path: str) -> Any:
    from adamctl.config.load import load_experiment

    return load_experiment(path).experiment.model


def test_summary_follows_the_experiment(files: tuple[str, str]) -> None:
    plain = json.loads(invoke("summary", files[0], "--json").stdout)
    assert "partitioning" not in plain
    wanted = ("--set", "cluster.partitions=2", "--workers", "4", "--set", "partition.softmax1={whole=1}")
    found = summary(files, *wanted)
    assert found["partitions"] == 2 and found["head"] == "whole"
    nothing, everything = found["stages"][-1]["parts"]
    assert nothing["outputs"] is None and nothing["cache"] is None and everything["range"] == [0, 10]
    assert "nothing" in invoke("summary", files[0], "--rates", files[1], *wanted).stdout
    auto = summary(files, "--set", "cluster.partitions=auto", "--workers", "4")
    assert auto["partitions"] in (1, 2, 4)


def measured(folder: Path, files: tuple[str, str], *seconds: float) -> None:
    """Writes a run of two partitions that took so long for 1,000 examples."""
    run = folder / "cut" / "001"
    run.mkdir(parents=True, exist_ok=True)
    (run / "experiment.toml").write_text(
        Path(files[0]).read_text() + f"workers = {len(seconds)}\npartitions = {len(seconds)}"
    )
    (run / "metrics.jsonl").write_text(
        json.dumps({"kind": "progress", "computed": [(s, 1000) for s in seconds]}) + "\n"
    )


def test_plan_takes_what_a_run_has_measured(files: tuple[str, str], tmp_path: Path) -> None:
    usual = ("--partitions", "2", "--link", "100Gbit", "--latency", "0us")
    compute_s = summary(files, *usual)["members"][0]["compute_s"] / 8 * 1000
    measured(tmp_path, files, 3 * compute_s, 3 * compute_s)
    found = plan(files, *usual, "--measured", "cut", "--run-dir", str(tmp_path))
    told = found["measured"]
    assert told["times_predicted"] == pytest.approx([3, 3]) and told["proposed"] == {}
    assert (told["partitions"], told["batch"], told["examples"]) == (2, 8, 1000)
    before, after = plan(files, *usual)["choices"][0]["partitions"], found["choices"][0]["partitions"]
    assert 2 * before["interval_s"] < after["interval_s"] < 3 * before["interval_s"]  # bytes take the same time
    assert plan(files, *usual)["measured"] is None


def test_a_slow_partition_is_proposed_less(files: tuple[str, str], tmp_path: Path) -> None:
    measured(tmp_path, files, 1.0, 2.0)
    arguments = ("--rates", files[1], "--partitions", "2", "--measured", "cut", "--run-dir", str(tmp_path))
    text = invoke("plan", files[0], *arguments).stdout
    assert f"measured in {tmp_path / 'cut' / '001'}" in text and "2 partitions, batches of 8, 1,000 examples" in text
    assert "an example in 1 takes 2 ms of one thread" in text
    table = text[text.index("[partition]") : text.index("workers as")].split("better cuts")[0].strip()
    (tmp_path / "even.toml").write_text(EXPERIMENT + "workers = 2\npartitions = 2\n" + table)
    cuts = {stage["name"]: stage["cut"] for stage in summary((str(tmp_path / "even.toml"), files[1]))["stages"]}
    assert cuts["dense1"]["at"] > [25] and cuts["conv2d1"]["at"] > [5]


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(application, list(arguments))
    assert isinstance(result.exception, ConfigurationError), result.output
    assert result.exception.exit_code == 2
    return str(result.exception)


def test_what_does_not_fit_is_refused_with_what_would(files: tuple[str, str]) -> None:
    rates = ("--rates", files[1], "--set", "model.layers.2.units=2000")
    sizes = {p: summary(files, *rates[2:], "--partitions", str(p))["largest_memory_bytes"] for p in (1, 2, 3, 4)}
    assert sizes[1] > sizes[3]
    limit = ("--set", f'cluster.memory_per_worker="{sizes[3]}B"')
    fitting = min(p for p in sizes if sizes[p] <= sizes[3])
    advice = f"the smallest number of partitions that fits is {fitting}: set cluster.partitions = {fitting}"
    assert advice in refusal("summary", files[0], *rates, *limit, "--partitions", "1")
    assert advice in refusal("plan", files[0], *rates, *limit, "--partitions", "1")
    assert advice in refusal("summary", files[0], *rates, *limit, "--set", "cluster.partitions=auto")
    text = invoke("plan", files[0], *rates, *limit, "--partitions", f"1,{fitting}").stdout
    assert "does not fit" in text and f": {fitting} partitions" in text


@pytest.mark.parametrize("command", ["plan", "summary"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partitions", "0"], "--partitions"),
        (["--partitions", "two"], "two"),
        (["--partitions", "1", "--link", "fast"], "a number above 0 with Kbit, Mbit, Gbit, MB, GB, such as 1Gbit"),
        (["--partitions", "1", "--link", "0Gbit"], "found 0Gbit"),
        (["--partitions", "1", "--latency", "5"], "expected a number from 0 with us, ms, s, such as 100us; found 5"),
        (["--partitions", "1", "--latency", "-1s"], "found -1s"),
    ],
)  # fmt: skip
def test_bad_flags(files: tuple[str, str], command: str, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(application, [command, files[0], *arguments])
    assert result.exit_code == 2 and message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "expected what adamctl plan EXP.toml --json prints"),
        ("[1, 2]", "expected what adamctl plan EXP.toml --json prints"),
        (json.dumps({"rates": {**RATES, "extra": 1}}), "expected what adamctl plan"),
        (json.dumps({**RATES, "update_per_s": 0}), "expected a finite number above 0 for update_per_s"),
        (json.dumps({**RATES, "stages": []}), "expected one of conv2d+maxpool2d; found none. Measure it: adamctl plan"),
    ],
)
def test_files_that_hold_no_rates(files: tuple[str, str], content: str | None, message: str) -> None:
    if content is None:
        Path(files[1]).unlink()
    else:
        Path(files[1]).write_text(content)
    assert message in refusal("plan", files[0], "--rates", files[1])


def test_a_bad_partition_table_is_refused(files: tuple[str, str]) -> None:
    message = refusal("summary", files[0], "--partitions", "2", "--set", 'partition.dense2="units"')
    assert 'partition.dense2: no such layer. Did you mean "dense1"?' in message
    assert "expected boundaries within its 40 units" in refusal(
        "summary",
        files[0],
        "--rates",
        files[1],
        "--partitions",
        "2",
        "--set",
        'partition.dense1={axis="units",at=[50]}',
    )


def test_plan_needs_servers_and_summary_does_not(files: tuple[str, str]) -> None:
    rates = ("--rates", files[1], "--ps", "0")
    assert "plan compares with whole replicas, which need" in refusal("plan", files[0], *rates)
    alone = invoke("summary", files[0], *rates, "--partitions", "2")
    assert alone.exit_code == 0 and "no parameter servers: the replica updates its own weights" in alone.stdout
