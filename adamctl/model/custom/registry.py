"""Finds the class that computes a layer, by import path, and makes the layer's object from plain keys.

Nothing is ever unpickled. Modules are found on Python's path, then in the folders of `ADAMCTL_LAYERS`: whoever starts a
run's roles on this machine puts the folders there (`search_path`). On other machines a module has to be installed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import os
import platform
import re
import sys
import threading
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, get_args

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model import description
from adamctl.model.custom.interface import Layer
from adamctl.model.description import Custom, KeyValue, Model

FOLDERS_VARIABLE = "ADAMCTL_LAYERS"
"""Folders, separated as in PATH, in which modules with layers are looked for after Python's own path."""
BUILT_IN = {
    "global_average_pool": "adamctl.kernels.custom.global_average_pool:GlobalAveragePool",
    "relu": "adamctl.kernels.custom.relu:Relu",
    "whiten": "adamctl.kernels.custom.whiten:Whiten",
}
"""Short names of layers that come with adamctl and are written as a user's are."""
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_LOCK = threading.RLock()


def is_custom(kind: object) -> bool:
    """Whether a layer's `type` names a class."""
    return isinstance(kind, str) and (":" in kind or kind in BUILT_IN)


def add_folder(folder: Path) -> None:
    """Has modules looked for in a folder, too, after all others."""
    place = str(folder.absolute())
    if place not in sys.path:
        sys.path.append(place)
        importlib.invalidate_caches()


@lru_cache(maxsize=1024)
def class_of(path: str) -> type[Layer]:
    """Returns the class that a path names.

    Raises:
        ConfigurationError: there is no such module or class, it cannot be imported, or it is no layer.
    """
    written = BUILT_IN.get(path, path)
    if not _PATH.fullmatch(written):
        raise ConfigurationError(f'expected type = "module:Class", such as "mypackage.layers:Whiten"; found "{path}"')
    module, _, name = written.partition(":")
    if module == "__main__":
        raise ConfigurationError(
            f"{name} is defined in a script or notebook (__main__), which a run's processes cannot import; put the "
            f'class into a file, such as layers.py, and use type = "layers:{name}"'
        )
    found: Any = _imported(module)
    for part in name.split("."):
        inside, found = found, getattr(found, part, None)
        if found is None:
            offered = [
                key for key, value in vars(inside).items() if isinstance(value, type) and issubclass(value, Layer)
            ]
            near = get_close_matches(part, [key for key in offered if key != "Layer"], n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(f"module {module} ({_origin(module)}) has no class {name}.{hint}")
    if not isinstance(found, type) or not issubclass(found, Layer) or found is Layer:
        raise ConfigurationError(f"{path}: expected a class derived from adam.Layer; found {found!r:.80}")
    if found.name in _RESERVED:
        raise ConfigurationError(f"{path}: its name {found.name!r} is that of a built-in layer; give it another name")
    return found


def _imported(module: str) -> Any:
    with _LOCK:
        for folder in filter(None, os.environ.get(FOLDERS_VARIABLE, "").split(os.pathsep)):
            add_folder(Path(folder))
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module}.".startswith(f"{error.name}."):
                raise ConfigurationError(f"module {module} cannot be imported: {error}") from error
            raise ConfigurationError(
                f"no module {module} on {platform.node()}: install it there, for {sys.executable}, or name its folder "
                f"in PYTHONPATH or {FOLDERS_VARIABLE}"
            ) from error
        except Exception as error:
            raise ConfigurationError(f"module {module} cannot be imported: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1024)
def layer_of(custom: Custom) -> Layer:
    """Returns the layer's object.

    Raises:
        ConfigurationError: as `class_of`; a key is unknown, missing, or not of its type.
    """
    found, keys = class_of(custom.path), dict(custom.keys)
    fields = {field.name: field for field in dataclasses.fields(found)}  # type: ignore[arg-type]
    for key in keys:
        if key not in fields:
            near = get_close_matches(key, list(fields), n=1)
            hint = f' Did you mean "{near[0]}"?' if near else ""
            raise ConfigurationError(f"unknown key {key}.{hint} Allowed here: {', '.join(['type', *fields])}.")
    try:
        return msgspec.convert(keys, found)
    except Exception as error:  # msgspec's of a wrong type, or the class's own __post_init__'s
        raise ConfigurationError(str(error).replace(" - at `$.", " - at `")) from error


def described(layer: Layer) -> Custom:
    """Returns the description of a layer given as an object.

    Raises:
        ConfigurationError: its class cannot be imported by other processes, or a key is no plain value.
    """
    kind = type(layer)
    path = f"{kind.__module__}:{kind.__qualname__}"
    path = next((name for name, long in BUILT_IN.items() if long == path), path)
    if "<locals>" in path:
        raise ConfigurationError(
            f"{path}: it is defined inside a function, where other processes cannot import it; move it to the top of a "
            "module"
        )
    if class_of(path) is not kind:
        raise ConfigurationError(
            f"{path}: expected the class of that name; found another there, {class_of(path)!r:.80}"
        )
    keys: list[tuple[str, KeyValue]] = []
    for field in dataclasses.fields(layer):  # type: ignore[arg-type]
        value = getattr(layer, field.name)
        if value is not None or field.default is not None:
            keys.append((field.name, plain_value(f"{path}: {field.name}", value)))
    return Custom(path, tuple(sorted(keys)))


def plain_value(where: str, value: object) -> KeyValue:
    """Returns a value of a key with lists as tuples. Raises ConfigurationError: it is not plain."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value):
        return tuple(value)
    raise ConfigurationError(f"{where}: expected a number, text, true, false, or a list of these; found {value!r:.80}")


def customs_of(model: Model) -> tuple[Custom, ...]:
    """Returns the layers of a model that classes compute, each once."""
    return tuple(dict.fromkeys(layer for layer in model.layers if isinstance(layer, Custom)))


def search_path(model: Model) -> tuple[str, ...]:
    """Returns the folders in which another process of this machine finds the modules of a model's own layers."""
    folders = (_folder(class_of(custom.path)) for custom in customs_of(model) if custom.path not in BUILT_IN)
    return tuple(dict.fromkeys(folder for folder in folders if folder))


def environment_for(model: Model, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the environment of a process of this machine that imports a model's own layers."""
    folders = dict.fromkeys((*search_path(model), *environment.get(FOLDERS_VARIABLE, "").split(os.pathsep)))
    named = os.pathsep.join(filter(None, folders))
    return {**environment, FOLDERS_VARIABLE: named} if named else environment


def without_native(model: Model) -> tuple[str, ...]:
    """Returns the paths of those layers of a model for which a step needs Python."""
    return tuple(
        dict.fromkeys(
            custom.path
            for custom, found in ((custom, class_of(custom.path)) for custom in customs_of(model))
            if found.native_upward is Layer.native_upward or found.native_downward is Layer.native_downward
        )
    )


def source_hashes(model: Model) -> dict[str, str]:
    """Returns path -> hex digest of the source of its module, for a model's own layers."""
    return {custom.path: _source_hash(class_of(custom.path).__module__) for custom in customs_of(model)}


def other_source(model: Model, theirs: Mapping[str, str]) -> str:
    """Returns what is wrong where a layer's module is not the same as at a peer, whose `source_hashes` these are."""
    for path, found in source_hashes(model).items():
        if theirs.get(path, found) != found:
            where = f"{_origin(class_of(path).__module__)} on {platform.node()}"
            return (
                f"layer {path}: {where} is not the module that the coordinator has; install the same one on all hosts"
            )
    return ""


@lru_cache(maxsize=1024)
def _source_hash(module: str) -> str:
    origin = _origin(module)
    content = Path(origin).read_bytes() if os.path.isfile(origin) else module.encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _origin(module: str) -> str:
    found = sys.modules.get(module)
    return str(getattr(found, "__file__", None) or module)


def _folder(found: type[Layer]) -> str:
    """Returns the folder from which a class's module is imported, or nothing if it is not a file."""
    origin, names = Path(_origin(found.__module__)), found.__module__.split(".")
    if not origin.is_file():
        return ""
    up = len(names) if origin.stem == "__init__" else len(names) - 1
    return str([origin.absolute().parent, *origin.absolute().parent.parents][up])


_RESERVED = frozenset(str(kind.__struct_config__.tag) for kind in get_args(description.Layer))
