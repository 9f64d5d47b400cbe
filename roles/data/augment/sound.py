"""Sound is augmented as frames of log-energies side by side: gain, noise, a shift in time, masks of frames and bands.

On features, not on samples, since frames are computed once for all passes. With x[t, b] the natural logarithm of the
energy of band b in frame t, in this order:

    gain     x + c, c the same for all: what samples times exp(c / 2) have. Exact, but for the floor of silence.
    noise    ln(exp(x) + exp(m_b) r n[t, b]), m_b the mean of band b, r of an example, n of mean 1: independent noise
             adds its power to that of the sound, on average. Its spectrum is the example's own mean.
    shift    frames by a whole number, the first or last repeated. Frames beyond the context are not looked for.
    masks    of consecutive frames, and of consecutive bands (Park et al. 2019, SpecAugment): the example's mean.

Draws depend on (seed, pass, example) alone. Logarithms may differ in the last bit between machines, as features do.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.augment import SoundConfig
from adamctl.roles.data.augment.chance import Floats, Indices, Keys, uniform, uniform_pairs

_GAIN, _NOISE, _SHIFT, _FRAMES_MASKED, _FIRST_FRAME, _BANDS_MASKED, _FIRST_BAND = range(1000, 1007)
_NOISE_VALUES: Final = 2000
"""Which draw of an example is for what; images have those below 1000. As there, these numbers never change."""
_DECIBEL: Final = math.log(10) / 10
_SMALLEST: Final = np.float32(2.0**-24)


def augment_sound(frames: NDArray[Any], keys: Keys, config: SoundConfig) -> None:
    """Changes examples in place.

    Args:
        frames: [n, frames, bands], float32 log-energies, not yet scaled.
        keys: [n], of the examples in the pass.
    """
    drawn = uniform(keys, np.arange(_GAIN, _FIRST_BAND + 1)).T
    if config.gain:
        frames += (config.gain * _DECIBEL * (2 * drawn[0] - 1)).astype(np.float32)[:, None, None]
    if config.noise:
        _add_noise(frames, keys, config.noise * drawn[1])
    if config.shift:
        _shift(frames, _whole(drawn[2], 2 * config.shift + 1) - config.shift)
    if config.mask_frames or config.mask_bands:
        hidden = _span(drawn[3], drawn[4], config.mask_frames, frames.shape[1])[:, :, None]
        hidden = hidden | _span(drawn[5], drawn[6], config.mask_bands, frames.shape[2])[:, None, :]
        np.copyto(frames, frames.mean(axis=(1, 2), keepdims=True), where=hidden)


def _add_noise(frames: NDArray[Any], keys: Keys, ratios: NDArray[np.float64]) -> None:
    """`ratios` [n]: the noise's power over that of the example's mean, in each band."""
    elements = frames.shape[1] * frames.shape[2]
    numbers = uniform_pairs(keys, np.arange(_NOISE_VALUES, _NOISE_VALUES + -(-elements // 2)))[:, :elements]
    powers: Floats = np.maximum(numbers, _SMALLEST).reshape(frames.shape)
    np.multiply(powers, np.maximum(2 * ratios, _SMALLEST).astype(np.float32)[:, None, None], out=powers)
    np.log(powers, out=powers)
    powers += frames.mean(axis=1, keepdims=True)
    np.logaddexp(frames, powers, out=frames)


def _shift(frames: NDArray[Any], steps: Indices) -> None:
    """`steps` [n]: how many frames later each example is read."""
    places = np.clip(np.arange(frames.shape[1]) + steps[:, None], 0, frames.shape[1] - 1)
    frames[...] = np.take_along_axis(frames, places[:, :, None], axis=1)


def _span(width: NDArray[np.float64], start: NDArray[np.float64], most: int, of: int) -> NDArray[np.bool_]:
    """Returns [n, of]: up to `most` neighbours at any place; widths 0 .. most are equally likely."""
    widths = _whole(width, most + 1)
    starts = _whole(start, of - widths + 1)
    places = np.arange(of)
    inside: NDArray[np.bool_] = (places >= starts[:, None]) & (places < (starts + widths)[:, None])
    return inside


def _whole(drawn: NDArray[np.float64], counts: int | Indices) -> Indices:
    """Returns whole numbers 0 .. counts - 1 of numbers in 0 <= u < 1."""
    return np.floor(drawn * counts).astype(np.int64)
