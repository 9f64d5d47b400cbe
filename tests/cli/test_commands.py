"""Commands that need nothing running: what they print, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from adamctl import __version__
from adamctl.cli.main import application
from adamctl.cli.output import print_json, table
from adamctl.errors import ConfigurationError
from adamctl.launch.run_folder import create_run_folder
from adamctl.roles.data.catalogue.fetch import Fetched
from adamctl.roles.data.catalogue.transfer import Progress
from tests.config.small_network import NETWORK

EXPERIMENTS = Path(__file__).parents[2] / "examples"


def invoke(*arguments: str) -> Result:
    result = CliRunner().invoke(application, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_version() -> None:
    printed = json.loads(invoke("version", "--json").stdout)
    assert printed["version"] == __version__ and {"python", "numpy"} <= printed["versions"].keys()
    assert invoke("version").stdout.startswith(f"adamctl {__version__}\n")


def test_config_show_with_origins() -> None:
    text = invoke("config", "show", str(EXPERIMENTS / "mnist.toml"), "--origin", "--passes", "3").stdout
    rows = {line.split()[0]: line.split() for line in text.splitlines()}
    assert rows["train.passes"][1:] == ["3", "flag", "--passes"]
    assert rows["train.warmstart_steps"][1:] == ["0", "default"]
    assert rows["model.layers.0.filters"][2] == "file"


def test_what_is_set_as_a_table_has_its_origin() -> None:
    shown = invoke("config", "show", str(EXPERIMENTS / "digits.toml"), "--origin", "--set", "data.sampling={ 3 = 2 }")
    (line,) = [line.split(maxsplit=2) for line in shown.stdout.splitlines() if line.startswith("data.sampling")]
    assert line == ["data.sampling.3", "2.0", "flag --set data.sampling"]
    (line,) = [line.split(maxsplit=2) for line in shown.stdout.splitlines() if line.startswith("model.layers.0.stride")]
    assert line == ["model.layers.0.stride", "1", "default"]


def test_config_show_is_an_experiment_again(tmp_path: Path) -> None:
    text = invoke("config", "show", str(EXPERIMENTS / "mnist.toml")).stdout
    (tmp_path / "again.toml").write_text(text)
    assert invoke("config", "show", str(tmp_path / "again.toml")).stdout == text


def test_config_show_for_programs() -> None:
    values = json.loads(invoke("config", "show", str(EXPERIMENTS / "digits.toml"), "--origin", "--json").stdout)
    assert values["schema_version"] == 1
    assert values["experiment"]["name"] == "digits"
    assert values["origins"]["name"]["kind"] == "file"


def test_summary_of_adams_mnist_network() -> None:
    """Adam 4.3.3's network with valid padding has 756 thousand connections."""
    values = json.loads(
        invoke("summary", str(EXPERIMENTS / "mnist.toml"), "--ps", "2", "--set", "train.n_push=1", "--json").stdout
    )
    assert values["connections"] == 756_000
    layers = {layer["name"]: layer for layer in values["layers"]}
    assert layers["conv2d1"]["output_shape"] == [24, 24, 10]
    assert layers["dense2"]["parameters"] == 400 * 400 + 400
    assert layers["dense2"]["protocol"] == "factors"
    assert layers["conv2d2"]["protocol"] == "gradient"
    weight_bytes = 32 * (400 + 2 * 400) * 4
    assert layers["dense2"]["factors_bytes"] == weight_bytes + 400 * 4
    assert values["push_bytes"] == sum(layer["push_bytes"] for layer in values["layers"])


def test_summary_shows_the_bytes_of_16_bits() -> None:
    arguments = ("summary", str(EXPERIMENTS / "mnist.toml"), "--set", "train.wire_push=bfloat16")
    values = json.loads(invoke(*arguments, "--json").stdout)
    plain = json.loads(invoke(*arguments[:2], "--json").stdout)
    assert (values["wire_push"], plain["wire_push"]) == ("bfloat16", "float32")
    assert 2 * values["push_bytes"] == plain["push_bytes"]
    assert 2 * values["push_gradient_bytes"] == plain["push_gradient_bytes"]
    assert values["parameters_bytes"] == plain["parameters_bytes"]
    assert "as bfloat16: " in invoke(*arguments).stdout


LOCAL = """
name = "local"

[data]
format = "digits"

[model]
input = [8, 8, 1]
loss = "logistic"
layers = [
  { type = "local2d", filters = 6, kernel = 3 },
  { type = "l2pool2d", size = 3, stride = 1 },
  { type = "local_contrast_norm", size = 3 },
  { type = "logistic", units = 10 },
]
"""


def test_summary_of_a_network_like_distbeliefs(tmp_path: Path) -> None:
    """DistBelief 5: weights of its own at each of 6x6 places; logistic outputs are pushed like a dense layer."""
    (tmp_path / "local.toml").write_text(LOCAL)
    values = json.loads(invoke("summary", str(tmp_path / "local.toml"), "--set", "train.batch=4", "--json").stdout)
    layers = {layer["name"]: layer for layer in values["layers"]}
    assert layers["local2d1"]["parameters"] == 6 * 6 * 6 * (3 * 3 + 1)
    assert layers["l2pool2d1"]["output_shape"] == layers["local_contrast_norm1"]["output_shape"] == [4, 4, 6]
    assert layers["local2d1"]["factors_bytes"] is None
    assert layers["logistic1"]["protocol"] == "factors"


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ("kernel = 3", "kernell = 3", 'model.layers[0].kernell: unknown key. Did you mean "kernel"?'),
        ("size = 3 }", "size = 4 }", "model.layers[2]: size must be odd"),
        ("size = 3 }", 'size = 3, weights = "cone" }', 'weights: found "cone"; expected one of "gaussian", "uniform"'),
        ("size = 3, stride", "size = 9, stride", "model.layers[1]: a window of 9x9 does not fit an input of 6x6"),
        ('loss = "logistic"', 'loss = "cross_entropy"', 'or set loss = "logistic"'),
    ],
)
def test_what_is_wrong_with_a_layer_is_said_by_layer_and_key(
    tmp_path: Path, right: str, wrong: str, words: str
) -> None:
    assert right in LOCAL
    (tmp_path / "local.toml").write_text(LOCAL.replace(right, wrong))
    result = CliRunner().invoke(application, ["summary", str(tmp_path / "local.toml")])
    assert isinstance(result.exception, ConfigurationError) and words in str(result.exception)


def test_summary_for_people() -> None:
    text = invoke("summary", str(EXPERIMENTS / "mnist.toml")).stdout
    assert "756,000 connections" in text
    assert "24x24x10" in text


def test_summary_obeys_a_forced_protocol() -> None:
    arguments = ("summary", str(EXPERIMENTS / "mnist.toml"), "--json", "--set", "train.protocol=gradient")
    values = json.loads(invoke(*arguments).stdout)
    assert {layer["protocol"] for layer in values["layers"]} == {"gradient", None}
    assert values["push_bytes"] == values["push_gradient_bytes"]


def test_summary_of_a_batch_algorithm_shows_what_servers_hold_and_gradients(tmp_path: Path) -> None:
    path = tmp_path / "wide.toml"
    path.write_text(NETWORK.replace("units = 4", "units = 400"))
    arguments = ("summary", str(path), "--json", "--set", "train.batch=4")
    plain = json.loads(invoke(*arguments).stdout)
    values = json.loads(invoke(*arguments, "--set", "optimizer.type=lbfgs", "--set", "optimizer.history=4").stdout)
    assert plain["layers"][0]["protocol"] == "factors"
    assert {layer["protocol"] for layer in values["layers"]} == {"gradient"}
    assert plain["server_bytes"] == plain["parameters_bytes"]
    assert values["server_bytes"] == (2 * 4 + 7) * values["parameters_bytes"]


def test_logs_of_a_run(tmp_path: Path) -> None:
    folder = create_run_folder(tmp_path, "small")
    (folder / "experiment.toml").touch()
    (folder / "logs" / "ps-1.log").write_text("one\ntwo\n")
    (folder / "logs" / "worker-1.log").write_text("three\nunfinished")
    text = invoke("logs", "small", "--run-dir", str(tmp_path)).stdout
    assert text.splitlines() == [
        "ps-1     | one",
        "ps-1     | two",
        "worker-1 | three",
        "worker-1 | unfinished",
    ]
    assert invoke("logs", str(folder), "--role", "worker").stdout.startswith("worker-1 | three")
    result = CliRunner().invoke(application, ["logs", str(folder), "--role", "data"])
    assert "logs there: ps-1, worker-1" in str(result.exception)


def test_data_inspect() -> None:
    pytest.importorskip("sklearn")
    values = json.loads(invoke("data", "inspect", "digits", "--json").stdout)
    assert values["splits"]["test"]["examples"] == 360
    assert "digits" in invoke("data", "inspect", "digits").stdout


def test_data_inspect_tells_how_many_examples_a_run_skips(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", x_train=np.array([[1.0], [np.nan]], np.float32), y_train=np.array([0, 1]))
    flags = ("data", "inspect", str(tmp_path / "set.npz"), "--set", "data.on_error=skip")
    told = invoke(*flags).stdout
    assert "damaged: 1 of train; a run skips them" in told
    assert json.loads(invoke(*flags, "--json").stdout)["splits"]["train"]["skipped"] == 1


def test_data_fetch_tells_once_of_each_complete_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fetched(name: str, folder: Path, *, base_url: str | None, progress: Progress) -> Fetched:
        for file in ("a", "b"):
            for there_bytes in (5, 10, 10):
                progress(file, there_bytes, 10)
        return Fetched(folder, (), ("a", "b"), 20)

    monkeypatch.setattr("adamctl.roles.data.catalogue.fetch.fetch", fetched)
    told = invoke("data", "fetch", "mnist", "--data", str(tmp_path)).stderr.splitlines()
    assert told == ["a: 10 of 10 bytes", "b: 10 of 10 bytes"]


def test_doctor_names_kernels_and_reasons() -> None:
    result = CliRunner().invoke(application, ["doctor", "--json"], standalone_mode=False)
    findings = {finding["name"].strip(): finding for finding in json.loads(result.stdout)["findings"]}
    assert {"python", "cores", "memory", "loopback", "Unix sockets", "kernels", "convolution"} <= set(findings)
    assert all(finding["advice"] for finding in findings.values() if finding["state"] in ("bad", "slow"))


def test_tables_are_aligned() -> None:
    assert table(("a", "long"), [("xyz", "1"), ("x", "22")], right=(1,)) == "a    long\nxyz     1\nx      22"


def test_json_has_a_version_first_and_no_infinities(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("inf"), "b": (1, 2)})
    assert list(json.loads(capsys.readouterr().out).items()) == [("schema_version", 1), ("a", None), ("b", [1, 2])]
