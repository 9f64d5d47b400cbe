"""`train` with something wrong that only its roles find: one clear message, last, and its exit code."""

from __future__ import annotations

import json
import socket
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_errors import adamctl

EXPERIMENT = """\
name = "small"
[data]
format = "idx"
source = "small"
[model]
input = [4, 4, 1]
[[model.layers]]
type = "softmax"
units = 2
[train]
passes = 1
[cluster]
threads = 1
"""
EXAMPLES = 64


def write_idx(path: Path, values: np.ndarray) -> None:
    path.write_bytes(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment and its data: pictures that are black or white."""
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    (tmp_path / "small").mkdir()
    labels = (np.arange(EXAMPLES) % 2).astype(np.uint8)
    pictures = np.broadcast_to(labels[:, None, None] * np.uint8(255), (EXAMPLES, 4, 4))
    for name in ("train", "t10k"):
        write_idx(tmp_path / "small" / f"{name}-images-idx3-ubyte", pictures)
        write_idx(tmp_path / "small" / f"{name}-labels-idx1-ubyte", labels)
    return tmp_path


def train(folder: Path, *arguments: str, code: int) -> str:
    """Returns the last message of a run that ends with `code`."""
    result = adamctl("train", "exp.toml", "--data", ".", *arguments, cwd=folder)
    assert result.returncode == code, result.stderr
    assert result.stdout == "" and "Traceback" not in result.stderr
    return result.stderr.rpartition("adamctl: error: ")[2]


def test_data_that_are_missing(folder: Path) -> None:
    message = train(folder, "--set", 'data.source="mnist"', code=2)
    assert "the data set 'mnist' was not found" in message and "adamctl data fetch mnist --data" in message


def test_data_that_are_cut_short(folder: Path) -> None:
    file = folder / "small" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:500])
    message = train(folder, code=5)
    assert str(file) in message and "the file is cut short" in message


def test_what_cannot_train_starts_no_role(folder: Path) -> None:
    write_idx(folder / "small" / "train-labels-idx1-ubyte", np.full(EXAMPLES, 7, np.uint8))
    message = train(folder, code=2)
    assert "example 0 has label 7, but the model's last layer has 2 units" in message
    assert not (folder / "runs").exists()
    result = adamctl("config", "check", "exp.toml", "--full", "--data", ".", cwd=folder)
    assert result.returncode == 2 and "has label 7" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--workers", "1000000"), "cluster.workers = 1000000: the run would start 1000004 processes"),
        (("--set", "train.batch=1000000000000"), "Lower train.batch"),
        (("--set", "cluster.threads=100000"), "cluster.threads = 100000: a worker may have"),
    ],
)
def test_what_this_machine_cannot_hold_starts_nothing(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in train(folder, *arguments, code=2)
    assert not (folder / "runs").exists()


def test_damage_further_in_ends_the_run_when_it_is_read(folder: Path) -> None:
    """Of 3,000 examples the look before the start sees a thousand; who reads the bad one is not at fault."""
    values = np.zeros((3000, 4, 4), np.float32)
    values[2500, 1] = np.nan
    labels = np.arange(3000) % 2
    np.savez(folder / "small.npz", x_train=values, y_train=labels, x_test=values[:9], y_test=labels[:9])
    arguments = ("--set", 'data.format="npz"', "--set", 'data.source="./small.npz"')
    message = train(folder, *arguments, code=5)
    assert "train: expected finite numbers, found nan in example 2500" in message
    assert "worker" in message and "data-1" not in message.partition(":")[0]
    result = adamctl("run", "show", "small", "--json", cwd=folder)
    shown = json.loads(result.stdout)
    assert (shown["state"], shown["failure"]) == ("failed", message.strip())
    result = adamctl("config", "check", "exp.toml", "--full", *arguments, cwd=folder)
    assert result.returncode == 5 and "found nan in example 2500" in result.stderr


def test_data_without_a_test_part_are_evaluated_on_their_validation_part(folder: Path) -> None:
    for part in ("images-idx3", "labels-idx1"):
        (folder / "small" / f"t10k-{part}-ubyte").unlink()
    arguments = ("--set", "data.validation=0.25", "--set", 'train.evaluate_on="test"', "--json")
    result = adamctl("train", "exp.toml", "--data", ".", *arguments, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "the data have no test part; the validation part is evaluated" in result.stderr
    assert json.loads(result.stdout)["evaluated_on"] == "validation"


def test_nothing_to_resume_from(folder: Path) -> None:
    assert "--resume nowhere: expected a checkpoint" in train(folder, "--resume", "nowhere", code=2)


def test_checkpoints_of_another_model_and_damaged_ones(folder: Path) -> None:
    assert adamctl("train", "exp.toml", "--data", ".", cwd=folder).returncode == 0
    run = folder / "runs" / "small" / "001"
    other = EXPERIMENT.replace("[[model.layers]]", '[[model.layers]]\ntype = "dense"\nunits = 3\n[[model.layers]]', 1)
    (folder / "exp.toml").write_text(other)
    message = train(folder, "--resume", str(run), code=2)
    assert "expected a checkpoint of this model" in message and "softmax1.weight" in message
    (folder / "exp.toml").write_text(EXPERIMENT)
    (manifest,) = run.glob("checkpoints/*/manifest.json")
    whole = manifest.read_bytes()
    for old, new in ((b'"examples": 64', b'"examples": 65'), (b'"job": "small"', b'"job": "sm\xffll"')):
        assert old in whole
        manifest.write_bytes(whole.replace(old, new))
        assert "manifest.json: " in train(folder, "--resume", str(run), code=5)
    manifest.write_bytes(whole)
    shards = manifest.parent / json.loads(manifest.read_text())["files"][0]["name"]
    whole = shards.read_bytes()
    shards.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert shards.name in train(folder, "--resume", str(run), "--passes", "2", code=5)
    result = adamctl("eval", str(run), "--data", ".", cwd=folder)
    assert result.returncode == 5 and shards.name in result.stderr


def test_a_run_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").touch()
    assert "choose another --run-dir" in train(folder, "--run-dir", "file", code=2)


def closed_port() -> str:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


def test_a_cluster_that_is_not_there(folder: Path) -> None:
    address = closed_port()
    result = adamctl("train", "exp.toml", "--data", ".", "--join", address, cwd=folder)
    assert result.returncode == 3
    waiting, last = result.stderr.splitlines()
    assert waiting == f"waiting for the controller at tcp://{address}, for 2 s"
    assert f"the controller at tcp://{address} did not answer within 5 s" in last and "--join" in last
    assert not (folder / "runs").exists(), "no run has begun"


def test_a_token_that_is_given_in_a_file_reaches_every_role(folder: Path) -> None:
    (folder / "token").write_text("secret\n")
    (folder / "token").chmod(0o600)
    result = adamctl("train", "exp.toml", "--data", ".", "--token-file", "token", "--json", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["roles"]["ps"] == 1
