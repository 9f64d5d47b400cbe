"""Files of named arrays that other programs read and write: safetensors, npz, PyTorch's."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError

NamedValues: TypeAlias = Mapping[str, NDArray[Any]]
FORMATS = ("safetensors", "npz", "torch")
_ENDINGS = {".safetensors": "safetensors", ".npz": "npz", ".pt": "torch", ".pth": "torch"}


def format_of(file: Path, given: str | None, flag: str) -> str:
    """Returns the given format, or the one that the file's ending means.

    Raises:
        ConfigurationError: neither names a format.
    """
    found = given or _ENDINGS.get(file.suffix)
    if found is None:
        raise ConfigurationError(f"{file}: its ending does not tell its format; give {flag} {', '.join(FORMATS)}")
    return found


def write_arrays(file: Path, kind: str, values: NamedValues, described: Mapping[str, str]) -> None:
    """Writes a file whole or not at all; `described` is stored in it if the format has a place for it.

    Raises:
        ConfigurationError: the file cannot be written, or the library for its format is not installed.
    """
    save = _library(_WRITERS, kind)
    partial = file.with_name(f".{file.name}.partial")
    try:
        save(partial, values, described)
        os.replace(partial, file)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def read_arrays(file: Path, kind: str) -> dict[str, NDArray[Any]]:
    """Reads all arrays of a file.

    Raises:
        ConfigurationError: there is no such file, or the library for its format is not installed.
        DamagedDataError: the file has another format or is truncated.
    """
    load = _library(_READERS, kind)
    if not file.is_file():
        raise ConfigurationError(f"{file}: no such file")
    try:
        found: dict[str, NDArray[Any]] = load(file)
        return found
    except Exception as error:  # each library raises its own errors
        raise DamagedDataError(f"{file}: cannot be read as {kind}: {error}") from error


def _library(functions: Mapping[str, Callable[[], Callable[..., Any]]], kind: str) -> Callable[..., Any]:
    try:
        return functions[kind]()
    except ImportError as error:
        raise ConfigurationError(_MISSING[kind]) from error


_MISSING = {
    "safetensors": "safetensors is not installed: pip install 'adamctl[export]', or use npz",
    "torch": "PyTorch is not installed, and only PyTorch can write and read its files: pip install torch, or use "
    "--to safetensors --order torch, which safetensors.torch.load_file reads as a state_dict",
}


def _safetensors_writer() -> Callable[..., None]:
    from safetensors.numpy import save_file

    def save(file: Path, values: NamedValues, described: Mapping[str, str]) -> None:
        save_file(dict(values), file, metadata=dict(described))

    return save


def _npz_writer() -> Callable[..., None]:
    def save(file: Path, values: NamedValues, described: Mapping[str, str]) -> None:
        with open(file, "wb") as opened:  # given a name, numpy would append an ending
            np.savez(opened, **dict(values))  # type: ignore[arg-type]

    return save


def _torch_writer() -> Callable[..., None]:
    import torch

    def save(file: Path, values: NamedValues, described: Mapping[str, str]) -> None:
        torch.save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in values.items()}, file)

    return save


def _safetensors_reader() -> Callable[..., dict[str, NDArray[Any]]]:
    from safetensors.numpy import load_file

    return load_file


def _npz_reader() -> Callable[..., dict[str, NDArray[Any]]]:
    def load(file: Path) -> dict[str, NDArray[Any]]:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a zip file")
        with np.load(file, allow_pickle=False) as opened:
            return {name: opened[name] for name in opened.files}

    return load


def _torch_reader() -> Callable[..., dict[str, NDArray[Any]]]:
    import torch

    def load(file: Path) -> dict[str, NDArray[Any]]:
        found = torch.load(file, map_location="cpu", weights_only=True)
        return {name: tensor.detach().float().numpy() for name, tensor in found.items()}

    return load


_WRITERS: Mapping[str, Callable[[], Callable[..., Any]]] = {
    "safetensors": _safetensors_writer,
    "npz": _npz_writer,
    "torch": _torch_writer,
}
_READERS: Mapping[str, Callable[[], Callable[..., Any]]] = {
    "safetensors": _safetensors_reader,
    "npz": _npz_reader,
    "torch": _torch_reader,
}
