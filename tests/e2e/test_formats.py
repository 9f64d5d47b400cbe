"""The same digits in each format for tables and shards, trained on by real processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.roles.data.prepared.prepare import prepare
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit
from tests.e2e.conftest import Runner

EXPERIMENT = """\
name = "formats"
[data]
format = "{format}"
source = "./set"
scale = "standard"
[data.columns]
label = "digit"
[model]
input = [8, 8, 1]
[[model.layers]]
type = "dense"
units = 32
activation = "relu"
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
lr = 0.1
[train]
passes = 6
batch = 16
warmstart_steps = 0
"""


def digits(split: FileSplit) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    source = open_source(DataConfig(), None, (64,))
    labels = source.labels(split)
    values = np.empty((len(labels), 64), np.float32)
    source.load(split, np.arange(len(labels)), values)
    return values, labels


def write(format: str, folder: Path) -> None:
    if format == "prepared":
        prepare(open_source(DataConfig(), None, (8, 8, 1)), folder, seed=1, threads=1, made_from="digits")
        return
    folder.mkdir()
    for split in FILE_SPLITS:
        values, labels = digits(split)
        names = [f"digit {label}" for label in labels]
        if format == "csv":
            rows = [",".join([*(f"{value:g}" for value in row), name]) for row, name in zip(values, names, strict=True)]
            header = ",".join([*(f"pixel{number}" for number in range(64)), "digit"])
            (folder / f"{split}.csv").write_text("\n".join([header, *rows]) + "\n")
        else:
            table = pa.table({"pixels": list(values), "digit": pa.array(names).dictionary_encode()})
            pq.write_table(table, folder / f"{split}.parquet", row_group_size=100)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["csv", "parquet", "prepared"])
def test_it_trains_and_tells_the_names_of_classes(adamctl: Runner, format: str) -> None:
    pytest.importorskip("sklearn")
    write(format, adamctl.folder / "set")
    text = EXPERIMENT.format(format=format)
    if format == "prepared":
        text = text.replace('[data.columns]\nlabel = "digit"\n', "")
    (adamctl.folder / "exp.toml").write_text(text)
    code, stdout, stderr = adamctl.run("train", "exp.toml", "--json", "--threads", "1")
    assert code == 0, stderr
    assert json.loads(stdout)["test_top1"] > 0.85, stderr
    (manifest, *_) = sorted((adamctl.folder / "runs").rglob("manifest.json"))
    prefix = "" if format == "prepared" else "digit "
    assert json.loads(manifest.read_text())["classes"] == [f"{prefix}{number}" for number in range(10)]
