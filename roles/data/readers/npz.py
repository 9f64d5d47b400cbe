"""NumPy's `.npz` archives with images and labels of training and test set. Nothing is ever unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.source import FileSplit, TableSource, check_fits, check_same_kind, checked_labels

_KEYS: Final = (
    ("x_train", "y_train", "x_test", "y_test"),
    ("images", "labels", "test_images", "test_labels"),
)


def open_npz(path: Path, input_shape: Sequence[int] | None = None) -> TableSource:
    """Opens an archive with x_train, y_train, x_test, y_test, or images, labels, test_images, test_labels.

    Images are [examples, ...] of bytes (kept as bytes; `unit` maps 0..255 to 0..1) or of any other number type (made
    float32; `unit` leaves them as they are); labels are whole numbers from 0.

    Raises:
        ConfigurationError: the keys are missing, the images do not fit the model's input, or all of it not the memory.
        DamagedDataError: the archive cannot be read, holds Python objects, or images and labels do not fit together.
    """
    if not path.is_file():
        raise ConfigurationError(f"expected an .npz file, found a folder: {path}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DamagedDataError(f"{path}: expected an .npz archive, found a single array")
            keys = next((keys for keys in _KEYS if all(key in archive for key in keys)), None)
            if keys is None:
                wanted = " or ".join(", ".join(keys) for keys in _KEYS)
                raise ConfigurationError(f"{path}: expected arrays {wanted}; found {', '.join(archive) or 'none'}")
            _check_size(path, archive, keys)
            loaded = {key: archive[key] for key in keys}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError) as error:
        raise DamagedDataError(f"{path}: expected an .npz archive of plain arrays, found: {error}") from error
    arrays: dict[FileSplit, tuple[NDArray[Any], NDArray[np.int32]]] = {
        "train": _pair(path, loaded, keys[0], keys[1]),
        "test": _pair(path, loaded, keys[2], keys[3]),
    }
    train, test = arrays["train"][0], arrays["test"][0]
    check_same_kind(train, test, str(path))
    value_max = 255.0 if train.dtype == np.uint8 else 1.0
    return TableSource(
        "npz",
        arrays,
        value_max=value_max,
        stored_bytes=path.stat().st_size,
        input_shape=input_shape,
        origin=str(path),
    )


def _check_size(path: Path, archive: Any, keys: Sequence[str]) -> None:
    """Refuses an archive before anything is unpacked: its headers say how large its arrays are.

    Raises:
        ConfigurationError: they take more memory than there is.
        DamagedDataError: a header says another size than the archive has.
    """
    total_bytes = 0
    for key in keys:
        found = archive.zip.getinfo(f"{key}.npy")
        with archive.zip.open(found) as member:
            version = np.lib.format.read_magic(member)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(member)
            expected_bytes, found_bytes = prod(shape) * dtype.itemsize, found.file_size - member.tell()
        if expected_bytes != found_bytes:
            raise DamagedDataError(
                f"{path}: {key} is {dtype} {list(shape)}, {expected_bytes} bytes by its header; found {found_bytes}"
            )
        total_bytes += expected_bytes if dtype == np.uint8 else expected_bytes + 4 * prod(shape)
    check_fits(total_bytes, str(path))


def _pair(
    path: Path, loaded: dict[str, NDArray[Any]], images_key: str, labels_key: str
) -> tuple[NDArray[Any], NDArray[np.int32]]:
    images = loaded[images_key]
    if images.ndim < 2 or not np.issubdtype(images.dtype, np.number) or np.iscomplexobj(images):
        raise DamagedDataError(
            f"{path}: expected numbers [examples, ...] in {images_key}, found {images.dtype} {list(images.shape)}"
        )
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
    return np.ascontiguousarray(images), checked_labels(loaded[labels_key], len(images), f"{path}: {labels_key}")
