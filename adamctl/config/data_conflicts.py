"""Conflicts between keys of `[data]`, and between them and the model's input.

Pure, as `adamctl.config.conflicts`.
"""

from __future__ import annotations

from collections.abc import Sequence

from adamctl.config.augment import augment_problems
from adamctl.config.check import Problem, show
from adamctl.config.data import DataConfig


def data_problems(data: DataConfig, shape: Sequence[int]) -> list[Problem]:
    """Returns conflicts between keys that are each valid by themselves; `shape` is the model's input."""
    problems: list[Problem] = []

    def refuse(key: str, message: str) -> None:
        problems.append(Problem(tuple(key.split(".")), message))

    if data.format == "digits" and data.source != "digits":
        found = f'found "digits" with source = {show(data.source)}'
        refuse("data.format", f'{found}; set it to "idx", "npz", "npy" or "imagefolder"')
    if data.format != "digits" and data.source in ("digits", ""):
        wanted = f'format = "{data.format}" needs a path or a name such as "mnist"'
        refuse("data.source", f"{wanted}; found {show(data.source)}")
    if data.translate and len(shape) != 3:
        wanted = "it moves images, so model.input must be [height, width, channels]"
        refuse("data.translate", f"found {data.translate}; {wanted}, found {show(shape)}; or set it to 0")
    elif data.translate and 2 * data.translate >= min(shape[:2]):
        wanted = f"less than half of the images' height and width, {shape[0]} x {shape[1]}"
        refuse("data.translate", f"found {data.translate}; expected {wanted}")
    for key, message in augment_problems(data.augment, shape):
        refuse(f"data.augment.{key}", message)
    return problems
