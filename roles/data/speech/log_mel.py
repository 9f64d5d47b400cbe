"""Samples to log-energies of mel filters, and frames to contexts: what DistBelief's speech network reads (section 5).

The paper: 25 ms of speech a frame, 40 log-energies, 11 frames side by side, 440 numbers. It does not say how far apart
frames lie; 10 ms is customary. The rest is defined as in HTK, so that it can be compared with
`torchaudio.functional.melscale_fbanks(mel_scale="htk", norm=None)` and `librosa.filters.mel(htk=True, norm=None)`:

    mel(f)      = 2595 log10(1 + f / 700)                                                   f in Hz
    edge[0 ..]  = bands + 2 frequencies, equally far apart in mel from low_hz to high_hz
    w[b, f]     = max(0, min((f - edge[b]) / (edge[b+1] - edge[b]), (edge[b+2] - f) / (edge[b+2] - edge[b+1])))
    hann[i]     = 0.5 - 0.5 cos(2 pi i / window)                                            i in 0 .. window - 1
    power[t, k] = |sum_i hann[i] x[t hop + i] exp(-2 pi j k i / n)|^2                       n: `fft_samples`
    out[t, b]   = ln(max(sum_k w[b, k rate / n] power[t, k], ENERGY_MIN))

Frames lie inside the sound (`center=False` there): 1 + (samples - window) // hop of them, and what is left at the end
is not heard. There is no pre-emphasis and no dither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError

ENERGY_MIN: Final = 1e-10
"""Floor of a filter's energy: below the noise of 16-bit samples, so that it decides about digital silence alone."""
WINDOW_SAMPLES_MAX: Final = 1 << 16
"""Bound on what a transform takes: a second of 48 kHz fits."""
BANDS_MAX: Final = 1024
_BLOCK_FRAMES: Final = 256
"""Frames whose spectra are in memory together: they fit in a core's cache, however long the file is."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class MelSettings:
    """What a frame is; the defaults are DistBelief's (section 5) with the customary hop.

    Attributes:
        bands: filters, and numbers a frame.
        window_ms: length of a frame, milliseconds.
        hop_ms: distance of the starts of two frames, milliseconds.
        low_hz: where the lowest filter begins.
        high_hz: where the highest filter ends; None for half of the rate.
    """

    bands: int = 40
    window_ms: float = 25.0
    hop_ms: float = 10.0
    low_hz: float = 20.0
    high_hz: float | None = None


class LogMel:
    """Computes frames of sounds of one rate. Holds constants alone, so threads may share it."""

    def __init__(self, settings: MelSettings, rate_hz: int) -> None:
        """Raises ConfigurationError: a setting is impossible at this rate, or leaves a filter without a frequency."""
        self.window_samples = _samples("window_ms", settings.window_ms, rate_hz)
        if self.window_samples > WINDOW_SAMPLES_MAX:
            raise ConfigurationError(
                f"expected a window_ms of at most {WINDOW_SAMPLES_MAX} samples, found {self.window_samples} at "
                f"{rate_hz} Hz"
            )
        self.hop_samples = _samples("hop_ms", settings.hop_ms, rate_hz)
        self.fft_samples = 1 << (self.window_samples - 1).bit_length()
        self.bands = settings.bands
        filters = mel_filters(settings, rate_hz, self.fft_samples)
        self._filters = np.ascontiguousarray(filters.T)
        # Window and filters stay float64, and so does all between them: in float32, quiet bands beside a loud tone are
        # off by more than 1e-4.
        turns = np.arange(self.window_samples) / self.window_samples
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * turns)

    def frame_count(self, samples: int) -> int:
        """Returns how many frames a sound of so many samples has; one shorter than a window has one."""
        return 1 + max(0, samples - self.window_samples) // self.hop_samples

    def frames(self, samples: Floats) -> Floats:
        """Returns the frames of a whole sound, [frames, bands]: natural logarithms, finite for finite samples.

        Args:
            samples: [n], in [-1, 1]; zeros follow where they are fewer than a window.

        Raises:
            ValueError: no samples, or more than one channel.
        """
        if samples.ndim != 1 or samples.size == 0:
            raise ValueError(f"expected samples [n] with n > 0, found the shape {samples.shape}")
        if samples.size < self.window_samples:
            samples = np.pad(samples, (0, self.window_samples - samples.size))
        windows = sliding_window_view(samples, self.window_samples)[:: self.hop_samples]
        energies = np.empty((len(windows), self.bands), np.float32)
        for start in range(0, len(windows), _BLOCK_FRAMES):
            block = slice(start, start + _BLOCK_FRAMES)
            spectrum = np.fft.rfft(windows[block] * self._hann, self.fft_samples)
            energies[block] = (spectrum.real**2 + spectrum.imag**2) @ self._filters
        np.maximum(energies, np.float32(ENERGY_MIN), out=energies)
        return np.log(energies, out=energies)


def mel_filters(settings: MelSettings, rate_hz: int, fft_samples: int) -> NDArray[np.float64]:
    """Returns the weight of each filter at each frequency of the transform, [bands, fft_samples // 2 + 1].

    Raises:
        ConfigurationError: no bands, frequencies out of order or above half of the rate, or a filter so narrow that no
            frequency of the transform lies in it.
    """
    low_hz, high_hz = settings.low_hz, rate_hz / 2 if settings.high_hz is None else settings.high_hz
    if not 1 <= settings.bands <= BANDS_MAX:
        raise ConfigurationError(f"expected 1 to {BANDS_MAX} bands, found {settings.bands}")
    if not 0 <= low_hz < high_hz <= rate_hz / 2:
        raise ConfigurationError(
            f"expected 0 <= low_hz < high_hz <= {rate_hz / 2:g}, half of the rate, found {low_hz:g} and {high_hz:g}"
        )
    edges = _hertz(np.linspace(_mel(low_hz), _mel(high_hz), settings.bands + 2))[:, None]
    frequencies = np.arange(fft_samples // 2 + 1) * (rate_hz / fft_samples)
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    filters: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    empty = np.flatnonzero(~filters.any(axis=1))
    if empty.size:
        raise ConfigurationError(
            f"band {empty[0]} ({edges[empty[0], 0]:.0f} to {edges[empty[0] + 2, 0]:.0f} Hz) lies between frequencies "
            f"of the transform, {rate_hz / fft_samples:.1f} Hz apart: expected fewer than {settings.bands} bands, "
            "or a longer window_ms"
        )
    return filters


def contexts(frames: Floats, context: int = 5) -> Floats:
    """Returns each frame with its neighbours side by side, [frames, (2 context + 1) bands], oldest first.

    The first and the last frame stand in for neighbours that are not there. DistBelief's 11 frames are `context` 5.

    Args:
        frames: [frames, bands], at least one.
        context: neighbours on each side, 0 or more.

    Raises:
        ValueError: `context` is negative, or there is no frame.
    """
    if context < 0 or frames.ndim != 2 or len(frames) == 0:
        raise ValueError(f"expected context >= 0 and frames [n > 0, bands], found {context} and {frames.shape}")
    bands = frames.shape[1]
    padded = np.pad(frames, ((context, context), (0, 0)), mode="edge")
    return sliding_window_view(padded.reshape(-1), (2 * context + 1) * bands)[::bands].copy()


def _mel(hertz: float) -> float:
    return float(2595.0 * np.log10(1.0 + hertz / 700.0))


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)


def _samples(name: str, milliseconds: float, rate_hz: int) -> int:
    """Returns the nearest number of samples. Raises ConfigurationError: that is none."""
    samples = int(rate_hz * milliseconds / 1000 + 0.5) if 0 < milliseconds < math.inf else 0
    if samples < 1:
        raise ConfigurationError(f"expected {name} of at least a sample at {rate_hz} Hz, found {milliseconds:g} ms")
    return samples
