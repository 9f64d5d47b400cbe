"""The classes of a model: the layers that are made from plain keys, and what other processes need to find them all.

How classes are found by import path: `adamctl.model.custom.modules`.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple, get_args

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model import description
from adamctl.model.custom.interface import Layer
from adamctl.model.custom.loss import custom_loss, has_native, is_custom_loss
from adamctl.model.custom.modules import FOLDERS_VARIABLE, Kind, class_at, folder_of, origin_of, path_of
from adamctl.model.custom.sources import imported_sources, module_file, source_hash
from adamctl.model.description import Custom, KeyValue, Model

BUILT_IN = {
    "global_average_pool": "adamctl.kernels.custom.global_average_pool:GlobalAveragePool",
    "relu": "adamctl.kernels.custom.relu:Relu",
    "whiten": "adamctl.kernels.custom.whiten:Whiten",
}
"""Short names of layers that come with adamctl and are written as a user's are."""
_LAYERS = Kind(Layer, "type", "layers")


def is_custom(kind: object) -> bool:
    """Whether a layer's `type` names a class."""
    return isinstance(kind, str) and (":" in kind or kind in BUILT_IN)


@lru_cache(maxsize=1024)
def class_of(path: str) -> type[Layer]:
    """Returns the class that a path names.

    Raises:
        ConfigurationError: there is no such module or class, it cannot be imported, or it is no layer.
    """
    found: type[Layer] = class_at(BUILT_IN.get(path, path), _LAYERS)
    if found.name in _RESERVED:
        raise ConfigurationError(f"{path}: its name {found.name!r} is that of a built-in layer; give it another name")
    return found


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
    path = path_of(type(layer), _LAYERS)
    path = next((name for name, long in BUILT_IN.items() if long == path), path)
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


def _modules_of(model: Model) -> dict[str, str]:
    """Returns path -> module of all classes of the user's own in a model: layers and loss."""
    own = {custom.path: class_of(custom.path).__module__ for custom in customs_of(model)}
    return {**own, model.loss: type(custom_loss(model.loss)).__module__} if is_custom_loss(model.loss) else own


def search_path(model: Model) -> tuple[str, ...]:
    """Returns the folders in which another process of this machine finds the modules of a model's own classes."""
    folders = (folder_of(module) for path, module in _modules_of(model).items() if path not in BUILT_IN)
    return tuple(dict.fromkeys(filter(None, folders)))


def environment_for(model: Model, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the environment of a process of this machine that imports a model's own classes."""
    folders = dict.fromkeys((*search_path(model), *environment.get(FOLDERS_VARIABLE, "").split(os.pathsep)))
    named = os.pathsep.join(filter(None, folders))
    return {**environment, FOLDERS_VARIABLE: named} if named else environment


def without_native(model: Model) -> tuple[str, ...]:
    """Returns the paths of those layers of a model, and of its loss, for which a step needs Python."""
    found = dict[str, None]()
    for custom in customs_of(model):
        kind = class_of(custom.path)
        if kind.native_upward is Layer.native_upward or kind.native_downward is Layer.native_downward:
            found[custom.path] = None
    if is_custom_loss(model.loss) and not has_native(model.loss):
        found[model.loss] = None
    return tuple(found)


class _Source(NamedTuple):
    """A file that a model's own classes are computed from; `what` says of what it is the file."""

    what: str
    file: str
    digest: str


def _sources_of(model: Model) -> dict[str, _Source]:
    """Returns path -> source for the modules of a model's own classes, module -> source for those that these import."""
    classes, imported = dict[str, _Source](), dict[str, _Source]()
    for path, module in _modules_of(model).items():
        what = f"{'loss' if path == model.loss else 'layer'} {path}"
        classes[path] = _Source(what, origin_of(module), source_hash(module))
        if path not in BUILT_IN:
            for name, (file, digest) in imported_sources(module, search_path(model)).items():
                imported.setdefault(name, _Source(f"module {name}, which {what} imports", str(file), digest))
    return {**classes, **imported}


def source_hashes(model: Model) -> dict[str, str]:
    """Returns path -> hex digest of its module's source, for a model's own layers and loss.

    Likewise, module -> hex digest, for the user's own modules that these import.
    """
    return {name: source.digest for name, source in _sources_of(model).items()}


def other_source(model: Model, theirs: Mapping[str, str]) -> str:
    """Returns what is wrong where a module is not the same as at a peer, whose `source_hashes` these are."""
    ours, node = _sources_of(model), platform.node()
    for name, source in ours.items():
        if name in theirs and theirs[name] != source.digest:
            return f"{source.what}: {source.file} on {node} is not the module that the coordinator has; {_INSTALL}"
    for name in sorted(ours.keys() ^ theirs.keys()):
        if ":" in name or not theirs:
            continue  # a coordinator of the version before tells nothing
        if name in ours:
            source = ours[name]
            return f"{source.what}: {source.file} on {node} is not beside the coordinator's; {_INSTALL}"
        file = module_file(name)
        found = f"found {file} on {node}, which is not" if file else f"there is none on {node}"
        return f"module {name}: expected it beside the layer or loss that imports it, as at the coordinator; {found}"
    return ""


_INSTALL = "install the same one on all hosts"
_RESERVED = frozenset(str(kind.__struct_config__.tag) for kind in get_args(description.Layer))
