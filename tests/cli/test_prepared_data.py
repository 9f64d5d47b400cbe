"""`adamctl data prepare` and `adamctl data verify`, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from adamctl.cli.main import application
from adamctl.cli.main import run as main
from adamctl.errors import ConfigurationError, DamagedDataError
from tests.config.small_network import NETWORK


def run(*arguments: object) -> Result:
    return CliRunner().invoke(application, ["data", *map(str, arguments)])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "table.csv").write_text("".join(f"{row},{row / 2},{'ab'[row % 2]}\n" for row in range(100)))
    return tmp_path / "table.csv"


def test_a_set_is_prepared_inspected_and_verified(table: Path) -> None:
    folder = table.parent / "set"
    done = run("prepare", table, "--to", folder, "--json")
    told = json.loads(done.stdout)
    assert sum(told["examples"].values()) == 100 and told["files"][0] == "train-00000.examples"
    described = json.loads(run("inspect", folder, "--json").stdout)
    assert described["format"] == "prepared" and described["classes"] == ["a", "b"]
    assert {split: part["examples"] for split, part in described["splits"].items()} == told["examples"]
    assert run("verify", folder).output == f"{folder}: whole, 4 files of 1,200 bytes\n"
    assert json.loads(run("verify", folder, "--json").stdout)["damage"] == []


def test_damage_is_told_and_ends_with_exit_code_5(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = table.parent / "set"
    assert run("prepare", table, "--to", folder).output.endswith('1,200 bytes; read them with format = "prepared"\n')
    content = bytearray((folder / "train.labels").read_bytes())
    content[5] ^= 1
    (folder / "train.labels").write_bytes(content)
    assert main(["data", "verify", str(folder)]) == 5
    out, error = capsys.readouterr()
    assert out == f"{folder}: 1 damaged parts, 4 files of 1,200 bytes\n"
    assert error.startswith(f"{folder / 'train.labels'}: block 0, bytes 0 to ")
    assert main(["data", "verify", str(folder), "--json"]) == 5
    told = json.loads(capsys.readouterr().out)
    assert told["damage"][0]["file"] == "train.labels" and told["damage"][0]["start"] == 0 and not told["ok"]


def test_the_data_of_an_experiment_take_its_input(table: Path) -> None:
    experiment = table.parent / "exp.toml"
    experiment.write_text(NETWORK.replace("[8, 8, 1]", "[2]") + f'[data]\nformat = "csv"\nsource = "{table}"\n')
    folder = table.parent / "set"
    assert run("prepare", experiment, "--to", folder).exit_code == 0
    assert json.loads(run("inspect", folder, "--json").stdout)["shape"] == [2]
    done = run("prepare", experiment, "--to", folder)
    assert isinstance(done.exception, ConfigurationError) and "set exists already" in str(done.exception)


def test_a_format_beside_an_experiment_is_refused(tmp_path: Path) -> None:
    experiment = tmp_path / "small.toml"
    experiment.write_text(NETWORK)
    done = run("inspect", experiment, "--format", "csv")
    assert isinstance(done.exception, ConfigurationError) and "--set data.format=csv changes it" in str(done.exception)


def test_a_name_whose_format_is_unknown_may_be_missing(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for name, missing in (("there", False), ("nowhere", True)):
        said = str(run("inspect", tmp_path / name).exception)
        assert "is unknown" in said and ("there is no such file or folder" in said) == missing


def test_images_need_a_shape(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x_train=np.zeros((4, 2, 3, 1), np.uint8), y_train=np.zeros(4, np.int32))
    assert run("prepare", tmp_path / "x.npz", "--to", tmp_path / "set", "--shape", "6").exit_code == 0
    assert json.loads(run("inspect", tmp_path / "set", "--json").stdout)["shape"] == [6]
    for wrong in ("6,x", "0", ""):
        done = run("prepare", tmp_path / "x.npz", "--to", tmp_path / "other", "--shape", wrong)
        assert isinstance(done.exception, ConfigurationError) and "--shape: expected whole numbers" in str(
            done.exception
        )


def test_damaged_images_are_left_out_and_told(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(12):
            image.new("L", (9, 9), number).save(tmp_path / "pets" / name / f"{number}.png")
    damaged = tmp_path / "pets" / "cat" / "3.png"
    damaged.write_bytes(damaged.read_bytes()[:40])
    flags = ("--format", "imagefolder", "--shape", "6,6,1", "--to", tmp_path / "set")
    assert isinstance(run("prepare", tmp_path / "pets", *flags).exception, DamagedDataError)
    done = run("prepare", tmp_path / "pets", *flags, "--on-error", "skip")
    assert "1 damaged ones left out" in done.output
    assert json.loads(run("inspect", tmp_path / "set", "--json").stdout)["shape"] == [6, 6, 1]


def test_keys_of_data_are_set_without_an_experiment(table: Path) -> None:
    labels = ("--set", "data.columns.label=0", "--set", "data.columns.inputs=[1]")
    assert json.loads(run("inspect", table, "--json", *labels).stdout)["shape"] == [1]
    assert run("prepare", table, "--to", table.parent / "set", *labels).exit_code == 0
    assert json.loads(run("inspect", table.parent / "set", "--json").stdout)["shape"] == [1]
    renamed = table.rename(table.with_suffix(".txt"))
    assert json.loads(run("inspect", renamed, "--json", "--set", "data.format=csv").stdout)["shape"] == [2]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("data.colums=1", '--set data.colums: data.colums: unknown key. Did you mean "columns"?'),
        ("data.on_error=skipp", 'found "skipp"; expected one of "fail", "skip"'),
        ("data.validation=2", "--set data.validation"),
        ("data.format=cvs", "data.format"),
        ("optimizer.lr=1", "--set optimizer.lr: expected a key of data"),
        ("data", "--set data: expected KEY=VALUE"),
    ],
)
def test_wrong_keys_of_data_are_refused_without_an_experiment(table: Path, setting: str, message: str) -> None:
    for command in (("inspect", table), ("prepare", table, "--to", table.parent / "set")):
        done = run(*command, "--set", setting)
        assert isinstance(done.exception, ConfigurationError) and message in str(done.exception)
    assert not (table.parent / "set").exists()
