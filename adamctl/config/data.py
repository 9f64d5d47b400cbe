"""The data of an experiment: where examples come from, and how they are prepared."""

from __future__ import annotations

from typing import Literal

from adamctl.config.augment import AugmentConfig
from adamctl.config.section import Section


class DataConfig(Section, frozen=True):
    """Where examples come from and how they are prepared.

    Attributes:
        format: `digits` (comes with scikit-learn), `idx`, `npz`, `npy`, `imagefolder`, or one that an installed package
            adds (entry point group `adamctl.readers`).
        source: a path, or a bare name such as `mnist` that is looked up in `--data` / ADAMCTL_DATA.
        validation: share of the training set held out, 0 <= share < 1.
        scale: `unit` maps bytes to [0, 1]; `standard` also subtracts the training set's mean and divides by its
            standard deviation (one of each over all pixels); `none` leaves values unchanged.
        memory_share: share of this machine's memory that the data server may use for decoded examples.
        search: folders in which a bare name is looked up, first match wins; filled in from `--data` / ADAMCTL_DATA.
        translate: each pass trains on every image shifted by a random whole number of pixels, from -translate to
            translate, vertically and horizontally, so that passes see different variants (Adam 3.1); uncovered pixels
            get the value of a zero byte. Must be less than half the images' height and width; 0 shifts nothing.
            Validation and test images are never shifted.
    """

    format: str = "digits"
    source: str = "digits"
    validation: float = 0.0
    scale: Literal["unit", "standard", "none"] = "unit"
    memory_share: float = 0.25
    search: tuple[str, ...] = ()
    translate: int = 0
    augment: AugmentConfig = AugmentConfig()
