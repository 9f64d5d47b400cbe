"""What a data set is described as."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.describe.inspect import inspect
from tests.roles.data.speech.sounds import write_recordings


def test_an_idx_folder_is_described(idx_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = idx_folder()
    found = inspect(DataConfig(format="idx", source="tiny"), search=[str(tmp_path)])
    json.dumps(found)
    assert found["schema_version"] == 1 and found["path"] == str(folder)
    assert found["shape"] == [4, 4, 1] and found["dtype"] == "uint8" and found["classes"] == list("0123456789")
    train = found["splits"]["train"]
    assert train["examples"] == 50 and train["classes"] == dict.fromkeys("0123456789", 5)
    assert (train["min"], train["max"]) == (0, 49)
    assert train["mean"] == pytest.approx(24.5) and train["std"] == pytest.approx(np.arange(50).std())
    assert found["order"] == "examples" and "window_bytes" not in found
    assert found["decoded_bytes"] == 70 * 16 and 0 < found["stored_bytes"] < 2000


def test_a_folder_of_images_is_described_with_its_sizes(image_folder: Callable[..., Path]) -> None:
    folder = image_folder()
    found = inspect(DataConfig(format="imagefolder", source=str(folder)), input_shape=(5, 5, 1))
    assert found["shape"] == [5, 5, 1] and found["classes"] == ["cat", "dog"]
    assert found["splits"]["train"]["sizes"] == {"height": [6, 6], "width": [9, 9]}
    assert found["splits"]["train"]["grey"] == 0 and found["decoder"] == "pillow"


def test_a_tar_file_of_images_is_described_as_the_folder_is(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = image_folder()
    with tarfile.open(tmp_path / "packed.tar", "w") as archive:
        archive.add(folder, "images")
    found = inspect(DataConfig(format="tar", source="packed"), search=[str(tmp_path)])
    assert found["shape"] == [64, 64, 3] and found["splits"]["train"]["sizes"] == {"height": [6, 6], "width": [9, 9]}
    plain = inspect(DataConfig(format="imagefolder", source=str(folder)))
    assert found["splits"] == plain["splits"]


def test_recordings_are_counted(tmp_path: Path) -> None:
    write_recordings(tmp_path / "set", {"a_0.wav": 900, "b_0.wav": 900, "b_1.wav": 300})
    config = DataConfig(format="audio", source=str(tmp_path / "set"), class_from="name", test_files="*_1.wav")
    found = inspect(config, input_shape=(440,))["splits"]
    assert [(found[split]["examples"], found[split]["groups"]) for split in ("train", "test")] == [(18, 2), (2, 1)]


def test_missing_data_are_reported_as_by_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="adamctl data fetch"):
        inspect(DataConfig(format="idx", source="mnist"), search=[str(tmp_path)])


def test_the_size_of_a_window_is_said(idx_folder: Callable[..., Path], tmp_path: Path) -> None:
    idx_folder(train=5000)
    config = DataConfig(format="idx", source="tiny", order="blocks", window_blocks=2, validation=0.5)
    found = inspect(config, search=[str(tmp_path)])
    assert (found["order"], found["blocks"], found["window_blocks"]) == ("blocks", 3, 2)
    assert found["window_bytes"] == 2 * 1024 * 16


@pytest.mark.parametrize("bytes_left", [40, 0], ids=["its pixels", "all of it"])
def test_damaged_examples_are_left_out_and_counted_where_a_run_skips_them(
    image_folder: Callable[..., Path], bytes_left: int
) -> None:
    folder = image_folder()
    config = DataConfig(format="imagefolder", source=str(folder), on_error="skip")
    assert [split["skipped"] for split in inspect(config)["splits"].values()] == [0, 0]
    damaged = next(path for path in sorted(folder.rglob("*")) if path.is_file())
    damaged.write_bytes(damaged.read_bytes()[:bytes_left])
    found = inspect(config)["splits"].values()
    assert sum(split["examples"] for split in found) == 24 and sum(split["skipped"] for split in found) == 1
    with pytest.raises(DamagedDataError, match=damaged.name):
        inspect(DataConfig(format="imagefolder", source=str(folder)))
