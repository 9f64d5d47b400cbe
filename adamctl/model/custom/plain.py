"""Layers of the user's own as users write them: `type = "mypackage.layers:Whiten"` with the keys beside it.

Plain values are what TOML and JSON hold. They are turned into the struct's form before an experiment is decoded, and
back after it is encoded, so that files and messages show the user's form alone.
"""

from __future__ import annotations

from typing import Any

import msgspec

from adamctl.model.custom.registry import is_custom
from adamctl.model.description import Custom

_TAG = str(Custom.__struct_config__.tag)


def from_user(layer: Any) -> Any:
    """Returns a layer's plain values as the struct has them; all but a user's own stay as they are."""
    if not isinstance(layer, dict) or not is_custom(layer.get("type")) or layer["type"] == _TAG:
        return layer
    keys = sorted((key, value) for key, value in layer.items() if key != "type")
    return {"type": _TAG, "path": layer["type"], "keys": keys}


def to_user(layer: Any) -> Any:
    """Returns a layer's plain values as the user writes them."""
    if not isinstance(layer, dict) or layer.get("type") != _TAG:
        return layer
    return {"type": layer["path"], **dict(layer["keys"])}


def experiment_from_user(experiment: Any) -> Any:
    """Returns an experiment's plain values with all layers as their structs have them."""
    return _with_layers(experiment, from_user)


def experiment_to_user(experiment: Any) -> Any:
    """Returns an experiment's plain values with all layers as users write them."""
    return _with_layers(experiment, to_user)


def builtins_of(value: msgspec.Struct) -> dict[str, Any]:
    """Returns the plain values of an experiment, or of what has one in `experiment`, as users write them."""
    values: dict[str, Any] = msgspec.to_builtins(value)
    if "experiment" in values:
        return {**values, "experiment": experiment_to_user(values["experiment"])}
    return dict(experiment_to_user(values))


def _with_layers(experiment: Any, change: Any) -> Any:
    model: Any = experiment.get("model") if isinstance(experiment, dict) else None
    layers = model.get("layers") if isinstance(model, dict) else None
    if not isinstance(layers, (list, tuple)):
        return experiment
    return {**experiment, "model": {**model, "layers": [change(layer) for layer in layers]}}
