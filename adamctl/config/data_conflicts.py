"""Conflicts between keys of `[data]`, and between them and the model's input.

Pure, as `adamctl.config.conflicts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from adamctl.config.check import Problem, show
from adamctl.config.data import DataConfig
from adamctl.config.formats import BUILT_IN

_OF_FILES: Final = ("imagefolder",)
"""Formats of ours in which each example, or run of examples, is a file with a name."""
_OF_IMAGES: Final = ("imagefolder",)
_OF_TABLES: Final = ("csv",)
FORMATS_READING: Final[dict[str, tuple[str, ...]]] = {
    "test_files": _OF_FILES,
    "class_from": _OF_FILES,
    "decoder": _OF_IMAGES,
    "columns": _OF_TABLES,
}
"""Keys that would be ignored with other formats of ours."""


def data_problems(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    """Returns conflicts between keys that are each valid by themselves; `shape` is the model's input."""
    problems: list[Problem] = []

    def refuse(key: str, message: str) -> None:
        problems.append(Problem(tuple(key.split(".")), message))

    if data.format == "digits" and data.source != "digits":
        found = f'found "digits" with source = {show(data.source)}'
        refuse("data.format", f'{found}; set it to "idx", "npz", "npy", "csv" or "imagefolder"')
    if data.format != "digits" and data.source in ("digits", ""):
        wanted = f'format = "{data.format}" needs a path or a name such as "mnist"'
        refuse("data.source", f"{wanted}; found {show(data.source)}")
    for key, formats in FORMATS_READING.items():
        value = getattr(data, key)
        if value != getattr(DataConfig(), key) and data.format in BUILT_IN and data.format not in formats:
            wanted = " or ".join(show(name) for name in formats)
            found = "" if isinstance(value, msgspec.Struct) else f"found {show(value)} "
            refuse(f"data.{key}", f'{found}with format = "{data.format}"; expected {wanted}: leave it out')
    if "/" in data.test_files:
        refuse("data.test_files", f"found {show(data.test_files)}; expected a pattern of names, without folders")
    if data.translate and len(shape) != 3:
        wanted = "it moves images, so model.input must be [height, width, channels]"
        refuse("data.translate", f"found {data.translate}; {wanted}, found {show(shape)}; or set it to 0")
    elif data.translate and 2 * data.translate >= min(shape[:2]):
        wanted = f"less than half of the images' height and width, {shape[0]} x {shape[1]}"
        refuse("data.translate", f"found {data.translate}; expected {wanted}")
    return problems
