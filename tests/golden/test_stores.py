"""What earlier versions kept on disk is opened by this one and has in it what was put in.

`tests/golden/make_stores.py` made it with their code; `values.npz` says what a client of theirs saw.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import adamctl as adam
from adamctl.cli.main import application
from adamctl.config.data import DataConfig
from adamctl.config.records import BucketRecord, JobRecord, LayoutRecord, bucket_key, decode, job_key, layout_key
from adamctl.roles.controller.core.service.commands import Change, Join, Part, decode_commands
from adamctl.roles.controller.store import LogStore
from adamctl.roles.data.readers.plugins import call, find
from adamctl.roles.ps.store.recovery import read_log
from tests.golden.make_stores import JOB, main
from tests.ports import free_ports

FOLDER = Path(__file__).parent / "stores"
NAMES = sorted(path.name for path in FOLDER.iterdir())
PREPARED = [name for name in NAMES if (FOLDER / name / "prepared").is_dir()]
PAGE_BYTES = 4096
"""Of the machine that the stores were made on."""


@pytest.fixture
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy, with the modes that such folders have: git keeps none."""
    copy = tmp_path / "kept"
    shutil.copytree(FOLDER / request.param, copy)
    for folder, _, files in os.walk(copy):
        Path(folder).chmod(0o700)
        for file in files:
            (Path(folder) / file).chmod(0o600)
    return copy


def values(kept: Path, prefix: str) -> dict[str, Any]:
    found = np.load(kept / "values.npz")
    return {name.removeprefix(f"{prefix}."): found[name] for name in found.files if name.startswith(f"{prefix}.")}


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(application, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_a_checkpoint_is_verified_loaded_and_exported(kept: Path, tmp_path: Path) -> None:
    expected = values(kept, "checkpoint")
    assert set(expected) == {"softmax1.weight", "softmax1.bias"}
    invoke("ckpt", "verify", str(kept / "checkpoint"))
    invoke("export", str(kept / "checkpoint"), str(tmp_path / "out.npz"))
    exported = np.load(tmp_path / "out.npz")
    loaded = adam.load(kept / "checkpoint").parameters()
    for name, array in expected.items():
        assert np.array_equal(exported[name], array) and np.array_equal(loaded[name], array), name


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_the_store_of_a_parameter_server_is_read_and_checked(kept: Path) -> None:
    log = read_log(kept / "ps" / "log.mdb")
    assert log.anchor.first >= 1 and log.anchor.next > log.anchor.first
    expected = values(kept, "job")
    assert set(expected) == {"w", "b"}
    found = sorted(value for arrays in log.arrays.values() for value in arrays[0].tolist())
    wanted = sorted(value for array in expected.values() for value in array.ravel().tolist())
    left = list(found)
    for value in wanted:
        left.remove(value)
    assert len(left) in (0, 51), "all values of the job, and those of the run's job if it had not been freed"


@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_the_log_of_a_controller_is_read_and_every_record_in_it(kept: Path) -> None:
    store = LogStore(kept / "controller")
    store.close()
    assert store.vote is not None and store.vote.name == "c-1" and store.entries
    commands = [command for entry in store.entries if entry.value for command in decode_commands(entry.value)]
    assert {type(command) for command in commands} >= {Change, Join}
    assert all(isinstance(command, Change | Join | Part) for command in commands)
    puts = {key: value for one in commands if isinstance(one, Change) for key, value in one.changes.puts.items()}
    kinds = {job_key(JOB): JobRecord, layout_key(JOB): LayoutRecord, bucket_key(JOB, 0): BucketRecord}
    for key, kind in kinds.items():
        assert isinstance(decode(puts[key], kind), kind), key
    joined = [one.request.node for one in commands if isinstance(one, Join)]
    assert {"ps-1", "data-1", "worker-1"} <= set(joined)


@pytest.mark.parametrize("kept", PREPARED, indirect=True)
def test_a_prepared_set_is_verified_and_read(kept: Path) -> None:
    invoke("data", "verify", str(kept / "prepared"))
    reader = find("prepared")
    source = call(reader, reader.open, DataConfig(format="prepared", source=""), kept / "prepared", (4, 4, 1))
    labels = source.labels("train")
    pictures = np.zeros((len(labels), 4, 4, 1), source.dtype)
    source.load("train", np.arange(len(labels)), pictures)
    assert len(labels) == 160 and np.bincount(labels).tolist() == [54, 53, 53]
    brightest = pictures.reshape(160, 4, 4).astype(int).sum(2)[:, :3].argmax(1)
    assert (brightest == labels).mean() > 0.95, "the bright row is the label"


@pytest.mark.slow
@pytest.mark.skipif(os.sysconf("SC_PAGE_SIZE") != PAGE_BYTES, reason=f"the stores have pages of {PAGE_BYTES} bytes")
@pytest.mark.parametrize("kept", NAMES, indirect=True)
def test_controller_and_server_go_on_with_the_job(kept: Path, tmp_path: Path) -> None:
    """As real processes of this version; a client gets the values and changes them, once more after a restart."""
    from tests.e2e.conftest import Runner

    runner = Runner(tmp_path)
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    try:
        runner.start("controller", "start", "--name", "c-1", "--port", str(port), "--dir", str(kept / "controller"))
        arguments = ("ps", "start", "--name", "ps-1", "--store", str(kept / "ps"), "--controller", address)
        server = runner.start(*arguments)
        expected = values(kept, "job")
        for restarted in (False, True):
            if restarted:
                server.process.kill()
                server.wait(30)
                server = runner.start(*arguments)
            start = {name: np.zeros_like(array) for name, array in expected.items()}
            with adam.ParameterClient(f"adam://{address}/{JOB}") as client:
                params = client.register(start, rule=adam.Momentum(0.25, momentum=0.5), acks="durable")
                for name, array in expected.items():
                    assert np.array_equal(params[name], array), name
                client.add({name: np.ones_like(array) for name, array in expected.items()})
                client.wait()
            expected = {name: array + 1 for name, array in expected.items()}
    finally:
        runner.close()


def test_stores_are_never_written_again(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="never written again"):
        main(Path(), tmp_path)
    assert json.loads((FOLDER / NAMES[0] / "made_by.json").read_text())["job"] == JOB
    assert PREPARED and len(NAMES) >= 2
