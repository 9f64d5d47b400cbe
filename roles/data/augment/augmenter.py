"""What a data server does to training examples in each pass, in place."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.augment import AugmentConfig, augment_problems
from adamctl.errors import ConfigurationError
from adamctl.kernels import backend
from adamctl.kernels.needed import WARP_KERNELS
from adamctl.kernels.numeric.warp import warp
from adamctl.roles.data.augment.chance import Floats, Indices, keys_of
from adamctl.roles.data.augment.drawing import check, draw_tones, draw_warps, ranges_of
from adamctl.roles.data.augment.plugins import Examples, open_augmenter
from adamctl.roles.data.augment.sound import augment_sound
from adamctl.roles.data.augment.translation import translate
from adamctl.roles.data.core import translations

AT_ONCE: Final = 1 << 20
"""Values that are changed at once, so that what is drawn for them takes little memory."""
_BYTE_MAX: Final = 255


class Augmenter:
    """Makes the variant of each example that a pass trains on. Its methods may be called from several threads."""

    def __init__(
        self,
        config: AugmentConfig,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        seed: int,
        border: float,
        white: float = 1.0,
        translate: int = 0,
        bands: int = 0,
    ) -> None:
        """Compiles what it needs, or loads it: not in the middle of a run.

        Args:
            shape, dtype: of the examples; uint8 or float32.
            border: what a zero byte is.
            white: the value of white: 255 for most bytes, less where `Source.value_max` is.
            translate: `DataConfig.translate`.
            bands: numbers of a frame, where examples are frames of sound.

        Raises:
            ConfigurationError: these examples cannot be augmented so.
        """
        for key, message in augment_problems(config, shape):
            raise ConfigurationError(f"data.augment.{key}: {message}")
        self._ranges = ranges_of(config)
        try:
            check(self._ranges)
        except ValueError as error:
            raise ConfigurationError(f"data.augment.{error}") from None
        if config.reuse < 1:
            raise ConfigurationError(f"data.augment.reuse: expected at least 1; found {config.reuse}")
        self._config, self._shape, self._dtype = config, tuple(shape), dtype
        self._seed, self._border, self._white, self._translate = seed, border, white, translate
        examples = Examples(self._shape, dtype, white)
        self._others = {name: open_augmenter(name, config.settings.get(name, {}), examples) for name in config.use}
        self._bands = bands
        if config.changes_sound and not bands:
            raise ConfigurationError("data.augment.sound: these examples are no frames of sound: leave it out")
        if (config.warps or config.changes_sound) and backend.choose() == "numba":
            backend.load(WARP_KERNELS)

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        config = self._config
        of_values = config.warps or config.changes_values or config.changes_sound
        return bool(self._translate or of_values or self._others)

    def apply(self, images: NDArray[Any], indices: Indices, pass_number: int) -> None:
        """Changes images in place, from what they are to what the pass trains on.

        Args:
            images: [n, elements] or [n, *shape], C-contiguous, of the type that was said.
            indices: [n], the examples' places in their files.
        """
        whole = images.reshape(len(indices), *self._shape)
        examples = max(AT_ONCE // prod(self._shape), 1)
        for start in range(0, len(indices), examples):
            part = slice(start, start + examples)
            self._apply(whole[part], indices[part], pass_number // self._config.reuse)

    def _apply(self, whole: NDArray[Any], indices: Indices, variant: int) -> None:
        config, flat = self._config, whole.reshape(len(indices), prod(self._shape))
        if self._translate:
            translate(whole, translations(indices, self._seed, variant, self._translate), self._border)
        if config.warps:
            warps = draw_warps(indices, self._seed, variant, self._ranges, *self._shape[:2])
            warp(whole, warps, self._border)
        if config.changes_values:
            tones = draw_tones(keys_of(indices, self._seed, variant), config.brightness, config.contrast)
            self._tone(flat, *tones)
        if config.changes_sound:
            augment_sound(
                flat.reshape(len(indices), -1, self._bands), keys_of(indices, self._seed, variant), config.sound
            )
        for name, other in self._others.items():
            other.apply(whole, keys_of(indices, self._seed, variant, name))

    def _tone(self, flat: NDArray[Any], factors: Floats, shifts: Floats) -> None:
        """Makes images [n, elements] lighter and more vivid; bytes stay within 0 .. white."""
        if self._dtype == np.uint8:
            values = np.arange(_BYTE_MAX + 1, dtype=np.float32) * factors + np.float32(self._white) * shifts
            tables = np.clip(np.rint(values), 0, min(self._white, _BYTE_MAX)).astype(np.uint8)
            for image, table in zip(flat, tables, strict=True):
                np.take(table, image, out=image)
            return
        span = np.float32(self._white - self._border)
        np.multiply(flat, factors, out=flat)
        np.add(flat, span * shifts + np.float32(self._border) * (1 - factors), out=flat)
