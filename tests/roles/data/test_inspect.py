"""What a data set is described as."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.inspect import inspect


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


def test_missing_data_are_reported_as_by_the_server(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="adamctl data fetch"):
        inspect(DataConfig(format="idx", source="mnist"), search=[str(tmp_path)])
