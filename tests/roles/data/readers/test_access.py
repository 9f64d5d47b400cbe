"""Files that may not be read or cannot be: named, with what to do, whatever the reader made of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError
from adamctl.roles.data.catalogue.catalogue import find_source
from adamctl.roles.data.prepared.verify import find_damage
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.access import reported
from adamctl.roles.data.readers.plugins import find_by_content
from tests.roles.data.prepared.sets import prepared


def forbid(monkeypatch: pytest.MonkeyPatch, forbidden: Path) -> None:
    """Makes the system refuse a file, or a folder and all in it, as it would if we were not perhaps root."""
    stat = os.stat
    for owner, name in (
        ("builtins", "open"), ("io", "open"), ("os", "open"), ("os", "stat"), ("os", "listdir"), ("os", "scandir"),
    ):  # fmt: skip
        real = getattr(__import__(owner), name)

        def refusing(path: Any, *more: Any, real: Any = real, **named: Any) -> Any:
            inside = isinstance(path, (str, Path)) and forbidden in Path(path).parents
            if inside or (isinstance(path, (str, Path)) and Path(path) == forbidden and real is not stat):
                raise PermissionError(errno.EACCES, "refused", str(path))
            return real(path, *more, **named)

        monkeypatch.setattr(f"{owner}.{name}", refusing)


def of_npz(folder: Path) -> tuple[DataConfig, Path]:
    np.savez(folder / "d.npz", x_train=np.zeros((9, 4, 4), np.uint8), y_train=np.arange(9) % 3)
    return DataConfig(format="npz", source=str(folder / "d.npz")), folder / "d.npz"


def of_csv(folder: Path) -> tuple[DataConfig, Path]:
    (folder / "t.csv").write_text("a,b,label\n1,2,x\n3,4,y\n")
    return DataConfig(format="csv", source=str(folder / "t.csv")), folder / "t.csv"


def of_npy(folder: Path) -> tuple[DataConfig, Path]:
    np.save(folder / "x_train.npy", np.zeros((9, 4, 4), np.uint8))
    np.save(folder / "y_train.npy", np.arange(9) % 3)
    return DataConfig(format="npy", source=str(folder)), folder / "y_train.npy"


@pytest.mark.parametrize("make", [of_npz, of_csv, of_npy])
def test_a_file_that_may_not_be_read_is_named(
    make: Callable[[Path], tuple[DataConfig, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, file = make(tmp_path)
    open_source(config, Path(config.source), None)
    forbid(monkeypatch, file)
    with pytest.raises(ConfigurationError, match=f"^{file}: this user may not read it; give it permission"):
        open_source(config, Path(config.source), None)


def test_so_is_a_folder(image_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    folder = image_folder()
    forbid(monkeypatch, folder / "cat")
    with pytest.raises(ConfigurationError, match=f"^{folder / 'cat'}.*: this user may not read it"):
        open_source(DataConfig(format="imagefolder", source=str(folder)), folder, (4, 4, 3))


def test_so_is_one_on_the_way_to_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, file = of_npz(tmp_path)
    forbid(monkeypatch, tmp_path)
    with pytest.raises(ConfigurationError, match=f"^{file}: this user may not read it"):
        find_source(config)
    with pytest.raises(ConfigurationError, match=r"d.*: this user may not read it"):
        find_source(DataConfig(format="npz", source="d", search=(str(tmp_path),)))


def test_so_is_a_folder_whose_format_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d").mkdir()
    forbid(monkeypatch, tmp_path / "d")
    for place in (tmp_path / "d", tmp_path / "d" / "x.csv"):
        with pytest.raises(ConfigurationError, match=f"^{place}: this user may not read it"):
            find_by_content(place)


def test_so_is_a_file_of_a_prepared_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepared(tmp_path / "set")
    opened = open_source(DataConfig(format="prepared", source=str(folder)), folder, None)
    for file in (folder / "train-00000.examples", folder / "prepared.json"):
        forbid(monkeypatch, file)
        with pytest.raises(ConfigurationError, match=f"^{file}: this user may not read it"):
            list(find_damage(folder))
    with pytest.raises(ConfigurationError, match=r"train-00000\.examples: this user may not read it"):
        opened.load("train", np.arange(3), np.empty((3, 4, 3, 1), np.uint8))


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EIO, "it cannot be read: refused; look at the disk, or copy the data again"),
        (errno.ENOENT, "it was there and is gone; do not move data while they are read"),
        (errno.EMFILE, "too many files are open; raise the limit"),
    ],
)
def test_what_else_the_system_says(tmp_path: Path, number: int, said: str) -> None:
    file = tmp_path / "t.csv"
    with pytest.raises(DamagedDataError) as raised, reported(tmp_path):
        raise OSError(number, "refused", str(file))
    assert str(raised.value).startswith(f"{file}: {said}")


def test_other_errors_stay_as_they_are() -> None:
    for error in (ConfigurationError("this"), DamagedDataError("that"), ZeroDivisionError()):
        with pytest.raises(type(error)) as raised, reported(Path("d")):
            raise error
        assert raised.value is error
    assert issubclass(DamagedDataError, AdamctlError)
