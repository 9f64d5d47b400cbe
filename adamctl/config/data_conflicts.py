"""Conflicts between keys of `[data]`, and between them and the model's input.

Pure, as `adamctl.config.conflicts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from adamctl.config.augment import augment_problems, sound_problems
from adamctl.config.check import Problem, show
from adamctl.config.data import DataConfig
from adamctl.config.formats import BUILT_IN
from adamctl.config.partitioning import parse_size
from adamctl.config.urls import checked_url, is_url
from adamctl.errors import ConfigurationError

_OF_FILES: Final = ("csv", "parquet", "imagefolder", "tar", "audio")
"""Formats of ours in which each example, or run of examples, is a file with a name."""
_OF_IMAGES: Final = ("parquet", "imagefolder", "tar")
_OF_TABLES: Final = ("csv", "parquet")
_OF_SOUND: Final = ("audio",)
FORMATS_READING: Final[dict[str, tuple[str, ...]]] = {
    "test_files": _OF_FILES,
    "class_from": ("imagefolder", "audio"),
    "decoder": _OF_IMAGES,
    "columns": _OF_TABLES,
    "features": _OF_SOUND,
    "alignment": _OF_SOUND,
}
"""Keys that would be ignored with other formats of ours."""


def data_problems(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    """Returns conflicts between keys that are each valid by themselves; `shape` is the model's input."""
    found = [*_of_source(data), *_unread(data), *_of_sampling(data), *_of_order(data), *_of_moves(data, shape)]
    problems = [Problem(("data", *key.split(".", 1)), message) for key, message in found]
    return problems + (_of_sound(data, shape) if data.format == "audio" else [])


def _of_source(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for what does not say where data are."""
    if data.format == "digits" and data.source != "digits":
        found = f'found "digits" with source = {show(data.source)}'
        yield "format", f"{found}; set it to one of {', '.join(map(show, BUILT_IN[1:]))}"
    if data.format != "digits" and data.source in ("digits", ""):
        wanted = f'format = "{data.format}" needs a path or a name such as "mnist"'
        yield "source", f"{wanted}; found {show(data.source)}"
    try:
        if is_url(data.source):
            checked_url(data.source)
    except ConfigurationError as error:
        yield "source", str(error).removeprefix("data.source: ")
    try:
        parse_size(data.disk_cache)
    except ValueError as error:
        yield "disk_cache", str(error)
    if data.disk_cache != DataConfig().disk_cache and not is_url(data.source):
        yield "disk_cache", f"found {show(data.disk_cache)}, but data.source is no URL: leave it out"
    if "/" in data.test_files:
        yield "test_files", f"found {show(data.test_files)}; expected a pattern of names, without folders"


def _unread(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for keys that the format does not read."""
    for key, formats in FORMATS_READING.items():
        value = getattr(data, key)
        if value != getattr(DataConfig(), key) and data.format in BUILT_IN and data.format not in formats:
            wanted = " or ".join(show(name) for name in formats)
            found = "" if isinstance(value, msgspec.Struct) else f"found {show(value)} "
            yield key, f'{found}with format = "{data.format}"; expected {wanted}: leave it out'


def _of_sampling(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for parts and draws that cannot be made."""
    if data.stratify and not data.validation:
        yield "stratify", "found true but data.validation is 0; set data.validation, for example 0.1"
    if isinstance(data.sampling, dict):
        for name, weight in data.sampling.items():
            if weight < 0:
                yield f"sampling.{name}", f"found {weight}; expected a weight of at least 0"
        if not data.sampling:
            yield "sampling", 'found an empty table; give classes weights, or set it to "all" or "balanced"'


def _of_order(data: DataConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for what passes in block order, or without blocks, cannot have."""
    if data.order == "blocks" and data.stratify:
        yield "order", 'found "blocks" with stratify = true; whole blocks are held out: leave one of the two out'
    if data.order == "examples" and data.window_blocks != DataConfig().window_blocks:
        yield "window_blocks", f'found {data.window_blocks} with order = "examples"; expected "auto" or "blocks"'


def _of_moves(data: DataConfig, shape: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for transformations that these examples cannot have."""
    if data.translate and len(shape) != 3:
        wanted = "it moves images, so model.input must be [height, width, channels]"
        yield "translate", f"found {data.translate}; {wanted}, found {show(shape)}; or set it to 0"
    elif data.translate and 2 * data.translate >= min(shape[:2]):
        wanted = f"less than half of the images' height and width, {shape[0]} x {shape[1]}"
        yield "translate", f"found {data.translate}; expected {wanted}"
    for key, message in augment_problems(data.augment, shape):
        yield f"augment.{key}", message
    if data.augment.changes_sound and data.format != "audio":
        yield "augment.sound", f'with format = "{data.format}"; expected "audio": leave it out'


def _of_sound(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    """Returns what is wrong with frames of sound and the model's input."""
    problems = []
    features = data.features
    inputs = (2 * features.context + 1) * features.bands
    if tuple(shape) != (inputs,):
        frames = f"{2 * features.context + 1} frames of {features.bands} bands"
        problems.append(Problem(("model", "input"), f"found {show(list(shape))}; expected [{inputs}]: {frames}"))
    if features.high_hz is not None and features.high_hz <= features.low_hz:
        found = f"found {features.high_hz:g} with low_hz = {features.low_hz:g}; expected a higher frequency"
        problems.append(Problem(("data", "features", "high_hz"), found))
    sound = data.augment.sound
    for key, message in sound_problems(sound, features.context, features.bands, center=features.center):
        problems.append(Problem(("data", "augment", "sound", key), message))
    if "/" in data.alignment:
        found = f"found {show(data.alignment)}; expected the name of a file in data.source, without folders"
        problems.append(Problem(("data", "alignment"), found))
    return problems
