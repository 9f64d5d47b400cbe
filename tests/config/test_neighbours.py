"""What leaves this version of an experiment can be read by the version before, unless it uses a new key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.config.neighbours import NEW_KEYS
from adamctl.config.resolved import read_resolved, to_toml
from adamctl.roles.coordinator.checkpoint.manifest import finish, read_manifest
from adamctl.roles.coordinator.client import JoinBody, encode_join_body
from adamctl.roles.data.client.data_set import opening
from adamctl.roles.data.core import dataset_identity
from adamctl.roles.ps.checkpoint_files import MANIFEST_NAME
from tests.config.small_network import load
from tests.golden.capture_keys import main, tables
from tests.roles.coordinator.checkpoint.test_manifest import described

FOLDER = Path(__file__).parents[1] / "golden" / "keys"
BEFORE = "0.1.0-e154ed90"
"""The version before, as in tests/e2e/test_rolling_upgrade.py."""
URL = "file:///nowhere/small"


def known() -> set[str]:
    """The keys of the version before, with dots."""
    kept = json.loads((FOLDER / f"{BEFORE}.json").read_text())
    return {f"{table}.{key}".lstrip(".") for table, keys in kept.items() for key in keys}


def keys_in(values: Mapping[str, Any], under: str = "") -> Iterator[str]:
    """Yields the keys that are written, with dots, but for those of layers and cuts."""
    for key, value in values.items():
        name = f"{under}.{key}".lstrip(".")
        yield name
        if isinstance(value, Mapping) and name not in ("model", "partition"):
            yield from keys_in(value, name)


def sent(experiment: Experiment, folder: Path) -> dict[str, Mapping[str, Any]]:
    """What leaves this version of an experiment: to workers, to data servers, into run folders and checkpoints."""
    body = msgspec.msgpack.decode(encode_join_body(experiment, ()))
    _, data = opening(experiment.data, experiment.model.input, experiment.seed)
    finish(folder, (), described(1, experiment=experiment))
    return {
        "worker": body[0],
        "data server": {"data": msgspec.msgpack.decode(data)},
        "run folder": tomllib.loads(to_toml(experiment)),
        "checkpoint": json.loads((folder / MANIFEST_NAME).read_bytes())["experiment"],
    }


def test_keys_that_are_new_are_listed_as_new() -> None:
    ours = {f"{table}.{key}".lstrip(".") for table, keys in tables(inspect.type_info(Experiment), "") for key in keys}
    assert ours - known() == set(NEW_KEYS), "list a new key in adamctl/config/neighbours.py"
    assert known() <= ours, "the version before writes keys that are no longer read"


def test_the_version_before_knows_every_key_that_it_is_sent(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    for where, values in sent(experiment, tmp_path).items():
        assert set(keys_in(values)) <= known(), where


def test_what_is_left_out_is_read_as_its_default_and_what_is_set_is_sent(tmp_path: Path) -> None:
    for settings in ((), (f"train.checkpoint_url={URL}",)):
        experiment = load(tmp_path, *settings)
        found = sent(experiment, tmp_path)
        assert msgspec.msgpack.decode(encode_join_body(experiment, ()), type=JoinBody).experiment == experiment
        assert msgspec.convert(found["data server"]["data"], DataConfig) == experiment.data
        (tmp_path / "resolved.toml").write_text(to_toml(experiment))
        assert read_resolved(tmp_path / "resolved.toml") == experiment
        assert read_manifest(tmp_path).experiment == experiment
    assert all(found[where]["train"]["checkpoint_url"] == URL for where in ("worker", "run folder", "checkpoint"))
    data = msgspec.structs.replace(experiment.data, targets="inputs")
    assert msgspec.msgpack.decode(opening(data, (8, 8, 1), 7)[1], type=DataConfig) == data


def test_a_data_set_has_the_same_name_in_both_versions() -> None:
    config = DataConfig(source="builtin:digits")
    assert dataset_identity(config, (8, 8, 1), 7) == "692cbeab4a90517a0c49dae5525e092b", "as e154ed90 computed it"
    other = msgspec.structs.replace(config, targets="inputs")
    assert dataset_identity(other, (8, 8, 1), 7) != dataset_identity(config, (8, 8, 1), 7)


def test_keys_are_captured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new.json"
    monkeypatch.setattr("sys.argv", ["capture_keys.py", str(path)])
    main()
    assert "targets" in json.loads(path.read_text())["data"]
    with pytest.raises(FileExistsError):
        main()
