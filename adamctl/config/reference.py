"""Generates the reference of experiment files from the typed structs; `adamctl config reference` prints it.

Keys, types and defaults come from the structs; a key's meaning is in its struct's docstring, under `Attributes:`;
ranges are in `adamctl.config.check.LIMITS`.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from adamctl.config.augment import AugmentConfig, ElasticConfig, SoundConfig
from adamctl.config.check import LIMITS
from adamctl.config.data import ColumnsConfig, DataConfig, FeaturesConfig
from adamctl.config.experiment import (
    ClusterConfig,
    Experiment,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)
from adamctl.config.reference_text import CUSTOM, FORMATS, INTRODUCTION, WHEN
from adamctl.model.description import Custom, Layer, Model
from adamctl.model.partition.cuts import Cut

SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("", Experiment),
    ("data", DataConfig),
    ("data.features", FeaturesConfig),
    ("data.augment", AugmentConfig),
    ("data.augment.elastic", ElasticConfig),
    ("data.augment.sound", SoundConfig),
    ("data.columns", ColumnsConfig),
    ("model", Model),
    ("optimizer", OptimizerConfig),
    ("optimizer.schedule", ScheduleConfig),
    ("train", TrainConfig),
    ("cluster", ClusterConfig),
    ("partition.LAYER", Cut),
)
_NAMES = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}


def page() -> str:
    """Returns the whole page, as Markdown."""
    parts = [INTRODUCTION, WHEN, "## Keys\n"]
    parts += [_section(path, struct) for path, struct in SECTIONS]
    parts += ["## Layers\n\nEach is a table `[[model.layers]]`; its `type` says which.\n"]
    parts += [_layer(layer) for layer in get_args(Layer) if layer is not Custom]
    parts += [CUSTOM]
    parts += ["## Data formats\n"]
    parts += [f"### `{name}`\n\n{text}" for name, text in FORMATS.items()]
    return "\n".join(parts)


def _section(path: str, struct: type[msgspec.Struct]) -> str:
    title = f"### `[{path}]`" if path else "### At the top"
    return f"{title}\n\n{_summary(struct)}\n\n{_table(path, struct)}"


def _layer(layer: type[msgspec.Struct]) -> str:
    return f'### `type = "{layer.__struct_config__.tag}"`\n\n{_summary(layer)}\n\n{_table("", layer)}'


def _table(path: str, struct: type[msgspec.Struct]) -> str:
    rows = ["| key | type | default | allowed | meaning |", "| --- | --- | --- | --- | --- |"]
    kinds, told = get_type_hints(struct), meanings(struct)
    for field in msgspec.structs.fields(struct):
        if _is_table(kinds[field.name]):
            continue
        limit = LIMITS.get(f"{path}.{field.name}".lstrip("."))
        allowed = ", ".join([*_choices(kinds[field.name]), *([limit.allowed] if limit else [])])
        cells = (f"`{field.name}`", _kind(kinds[field.name]), _default(field), allowed, told.get(field.name, ""))
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _is_table(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _parts(kind: Any) -> Iterator[Any]:
    if get_origin(kind) in (Union, UnionType):
        for part in get_args(kind):
            yield from _parts(part)
    else:
        yield kind


def _kind(kind: Any) -> str:
    """Returns a type in TOML users' words."""
    found: list[str] = []
    for part in _parts(kind):
        if get_origin(part) is Literal:
            found.append("text")
        elif get_origin(part) is tuple:
            inner = [one for one in get_args(part) if one is not Ellipsis]
            tables = len(inner) > 0 and all(_is_table(one) for one in _parts(inner[0]))
            length = "" if Ellipsis in get_args(part) else f"{len(inner)} "
            found.append("tables" if tables else f"list of {length}{_kind(inner[0])}s")
        elif get_origin(part) is dict or _is_table(part):
            found.append("table")
        elif part is not type(None):
            found.append(_NAMES[part])
    return " or ".join(dict.fromkeys(found))


def _choices(kind: Any) -> list[str]:
    return [f"`{value}`" for part in _parts(kind) if get_origin(part) is Literal for value in get_args(part)]


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "needed"
    if field.default is None or field.default_factory is not msgspec.NODEFAULT:
        return "unset"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    if isinstance(field.default, tuple):
        return f"`{list(field.default)}`"
    return f'`"{field.default}"`' if isinstance(field.default, str) else f"`{field.default}`"


def _summary(struct: type) -> str:
    """Returns the part of a struct's docstring before its attributes, as one paragraph."""
    return " ".join(inspect.cleandoc(struct.__doc__ or "").partition("Attributes:")[0].split())


def meanings(struct: type) -> dict[str, str]:
    """Returns key -> its description in the struct's docstring; `a, b: text` describes both."""
    _, _, attributes = inspect.cleandoc(struct.__doc__ or "").partition("Attributes:\n")
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(attributes)):
        names, _, text = entry.partition(":")
        for name in names.split(","):
            found[name.strip()] = " ".join(text.split())
    return found
