"""Conflicts between keys of `[data]`, and between them and the model's input.

Pure, as `adamctl.config.conflicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from adamctl.config.check import Problem, show
from adamctl.config.data import DataConfig, FeaturesConfig
from adamctl.config.formats import BUILT_IN

_OF_FILES: Final = ("imagefolder", "audio")
"""Formats of ours in which each example, or run of examples, is a file with a name."""


def data_problems(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    """Returns conflicts between keys that are each valid by themselves; `shape` is the model's input."""
    problems: list[Problem] = []

    def refuse(key: str, message: str) -> None:
        problems.append(Problem(tuple(key.split(".")), message))

    if data.format == "digits" and data.source != "digits":
        found = f'found "digits" with source = {show(data.source)}'
        refuse("data.format", f'{found}; set it to "idx", "npz", "npy", "imagefolder" or "audio"')
    if data.format != "digits" and data.source in ("digits", ""):
        wanted = f'format = "{data.format}" needs a path or a name such as "mnist"'
        refuse("data.source", f"{wanted}; found {show(data.source)}")
    for key, value in (("test_files", data.test_files), ("class_from", data.class_from)):
        if value != getattr(DataConfig(), key) and data.format in BUILT_IN and data.format not in _OF_FILES:
            wanted = " or ".join(show(name) for name in _OF_FILES)
            refuse(f"data.{key}", f'found {show(value)} with format = "{data.format}"; expected {wanted}: leave it out')
    if "/" in data.test_files:
        refuse("data.test_files", f"found {show(data.test_files)}; expected a pattern of names, without folders")
    problems += _problems_of_sound(data, shape)
    if data.translate and len(shape) != 3:
        wanted = "it moves images, so model.input must be [height, width, channels]"
        refuse("data.translate", f"found {data.translate}; {wanted}, found {show(shape)}; or set it to 0")
    elif data.translate and 2 * data.translate >= min(shape[:2]):
        wanted = f"less than half of the images' height and width, {shape[0]} x {shape[1]}"
        refuse("data.translate", f"found {data.translate}; expected {wanted}")
    return problems


def _problems_of_sound(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    if data.format in BUILT_IN and data.format != "audio":
        found = f'found it with format = "{data.format}"; expected "audio", or leave it out'
        changed = (("alignment", data.alignment != ""), ("features", data.features != FeaturesConfig()))
        return [Problem(("data", key), found) for key, is_changed in changed if is_changed]
    if data.format != "audio":
        return []
    problems = []
    features = data.features
    inputs = (2 * features.context + 1) * features.bands
    if tuple(shape) != (inputs,):
        frames = f"{2 * features.context + 1} frames of {features.bands} bands"
        problems.append(Problem(("model", "input"), f"found {show(list(shape))}; expected [{inputs}]: {frames}"))
    if features.high_hz is not None and features.high_hz <= features.low_hz:
        found = f"found {features.high_hz:g} with low_hz = {features.low_hz:g}; expected a higher frequency"
        problems.append(Problem(("data", "features", "high_hz"), found))
    if "/" in data.alignment:
        found = f"found {show(data.alignment)}; expected the name of a file in data.source, without folders"
        problems.append(Problem(("data", "alignment"), found))
    return problems
