"""Writes an experiment as TOML and reads it back: for the run folder, and for starting the coordinator."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment, parse_setting
from adamctl.config.neighbours import experiment_for_neighbours
from adamctl.model.custom.plain import builtins_of

FILE_NAME = "experiment.toml"


def to_toml(experiment: Experiment) -> str:
    """Returns the whole experiment, defaults included, as TOML.

    Unset keys are left out, and keys with defaults that the version before does not know: it may read the run folder.
    """
    return "\n".join(_table(experiment_for_neighbours(builtins_of(experiment)), ())) + "\n"


def write_resolved(experiment: Experiment, folder: Path) -> Path:
    """Writes `experiment.toml`, readable by its owner only, into a run folder and returns its path."""
    path = folder / FILE_NAME
    with open(path, "w", encoding="utf-8", opener=partial(os.open, mode=0o600)) as stream:
        stream.write(to_toml(experiment))
    return path


def read_resolved(path: str | Path, settings: Sequence[str] = ()) -> Experiment:
    """Reads a self-contained experiment: the environment does not change it, only `settings` (KEY=VALUE) do.

    Raises:
        ConfigurationError: as `load_experiment`.
    """
    return load_experiment(path, settings=[parse_setting(text) for text in settings]).experiment


def _table(values: dict[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yields lines: plain values first, then tables, then arrays of tables, as TOML requires."""
    later: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) or (isinstance(value, (list, tuple)) and value and isinstance(value[0], dict)):
            later.append((key, value))
        elif value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in later:
        inner = (*path, key)
        name = ".".join(map(_key, inner))
        if value == {}:
            continue
        if isinstance(value, dict):
            yield f"\n[{name}]"
            yield from _table(value, inner)
        else:
            for item in value:
                yield f"\n[[{name}]]"
                yield from _table(item, inner)


def _key(name: str) -> str:
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return repr(value)
