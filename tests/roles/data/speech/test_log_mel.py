"""Log-energies of mel filters: against a direct transform, other packages, and by their properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.roles.data.speech.log_mel import ENERGY_MIN, LogMel, MelSettings, contexts, mel_filters

RATE_HZ = 8000


def noise(samples: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32)


def tone(hertz: float, samples: int = RATE_HZ // 2, rate_hz: int = RATE_HZ) -> NDArray[np.float32]:
    return np.sin(2 * np.pi * hertz / rate_hz * np.arange(samples)).astype(np.float32)


def edges_hz(settings: MelSettings, high_hz: float) -> list[float]:
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (settings.low_hz, high_hz))
    step = (high - low) / (settings.bands + 1)
    return [700 * (10 ** ((low + step * one) / 2595) - 1) for one in range(settings.bands + 2)]


def directly(samples: NDArray[np.float32], settings: MelSettings, rate_hz: int) -> NDArray[np.float64]:
    """The definition number by number in float64, with a transform that is a sum, and nothing of ours."""
    window, hop = round(rate_hz * settings.window_ms / 1000), round(rate_hz * settings.hop_ms / 1000)
    size = 1
    while size < window:
        size *= 2
    edges = edges_hz(settings, settings.high_hz or rate_hz / 2)
    frequencies = [number * rate_hz / size for number in range(size // 2 + 1)]
    angles = -2j * np.pi * np.outer(np.arange(window), np.arange(size // 2 + 1)) / size
    hann = np.array([math.sin(math.pi * one / window) ** 2 for one in range(window)])
    rows = []
    for start in range(0, len(samples) - window + 1, hop):
        power = np.abs((samples[start : start + window].astype(np.float64) * hann) @ np.exp(angles)) ** 2
        row = []
        for low, middle, high in zip(edges, edges[1:], edges[2:], strict=False):
            energy = 0.0
            for hertz, one in zip(frequencies, power, strict=True):
                if low < hertz <= middle:
                    energy += one * (hertz - low) / (middle - low)
                elif middle < hertz < high:
                    energy += one * (high - hertz) / (high - middle)
            row.append(math.log(max(energy, ENERGY_MIN)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize(
    ("settings", "rate_hz"),
    [
        (MelSettings(), 8000),
        (MelSettings(), 16000),
        (MelSettings(bands=23, window_ms=32, hop_ms=7, low_hz=100, high_hz=3500), 8000),
    ],
)
def test_frames_are_those_of_a_direct_transform(settings: MelSettings, rate_hz: int) -> None:
    samples = noise(rate_hz // 8) * 0.01 + tone(440, rate_hz // 8, rate_hz) * 0.7
    samples = np.round(samples * 32768).astype(np.float32) / np.float32(32768)
    found, expected = LogMel(settings, rate_hz).frames(samples), directly(samples, settings, rate_hz)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_many_frames_are_those_of_their_parts() -> None:
    """Longer than the frames that are computed together."""
    samples, log_mel = noise(80 * 700 + 123), LogMel(MelSettings(), RATE_HZ)
    frames = log_mel.frames(samples)
    assert len(frames) == log_mel.frame_count(len(samples)) == 700
    for one in (0, 255, 256, 511, 512, 699):
        alone = log_mel.frames(samples[80 * one : 80 * one + 200])
        np.testing.assert_allclose(alone, frames[one : one + 1], rtol=0, atol=1e-4)


def test_a_shift_by_a_hop_shifts_frames() -> None:
    samples, log_mel = noise(RATE_HZ), LogMel(MelSettings(), RATE_HZ)
    np.testing.assert_allclose(log_mel.frames(samples[80:]), log_mel.frames(samples)[1:], rtol=0, atol=1e-4)


@pytest.mark.parametrize("band", [8, 15, 22, 30, 39])
def test_a_tone_has_its_energy_in_the_band_around_it(band: int) -> None:
    middle = edges_hz(MelSettings(), RATE_HZ / 2)[band + 1]
    frames = LogMel(MelSettings(), RATE_HZ).frames(tone(middle))
    assert (frames.argmax(axis=1) == band).all()
    far = np.abs(np.arange(40) - band) > 4
    assert (frames[:, far].max(axis=1) < frames[:, band] - math.log(1000)).all()


def test_twice_the_amplitude_is_four_times_the_energy() -> None:
    samples, log_mel = noise(2000), LogMel(MelSettings(), RATE_HZ)
    np.testing.assert_allclose(log_mel.frames(samples * 2) - log_mel.frames(samples), math.log(4), rtol=0, atol=1e-4)


def test_silence_is_the_floor_and_short_sounds_have_one_frame() -> None:
    log_mel = LogMel(MelSettings(), RATE_HZ)
    np.testing.assert_array_equal(
        log_mel.frames(np.zeros(1000, np.float32)), np.full((11, 40), np.log(np.float32(ENERGY_MIN)))
    )
    short = noise(50)
    padded = np.concatenate([short, np.zeros(150, np.float32)])
    assert log_mel.frame_count(50) == 1
    np.testing.assert_array_equal(log_mel.frames(short), log_mel.frames(padded))
    for wrong in (np.zeros(0, np.float32), np.zeros((300, 2), np.float32)):
        with pytest.raises(ValueError, match="expected samples"):
            log_mel.frames(wrong)


def test_a_context_has_neighbours_side_by_side_and_edges_repeated() -> None:
    frames = np.arange(6, dtype=np.float32).reshape(3, 2)
    assert contexts(frames, 0).tolist() == frames.tolist()
    assert contexts(frames, 2).tolist() == [
        [0, 1, 0, 1, 0, 1, 2, 3, 4, 5],
        [0, 1, 0, 1, 2, 3, 4, 5, 4, 5],
        [0, 1, 2, 3, 4, 5, 4, 5, 4, 5],
    ]
    assert contexts(np.zeros((1, 40), np.float32)).shape == (1, 440)
    for wrong, context in ((frames, -1), (frames[:0], 5), (frames[0], 5)):
        with pytest.raises(ValueError, match="expected context"):
            contexts(wrong, context)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MelSettings(bands=0), "expected 1 to 1024 bands, found 0"),
        (MelSettings(bands=1025), "expected 1 to 1024 bands, found 1025"),
        (MelSettings(window_ms=8193), "window_ms of at most 65536 samples, found 65544 at 8000 Hz"),
        (MelSettings(window_ms=math.inf), "window_ms of at least a sample at 8000 Hz, found inf ms"),
        (MelSettings(window_ms=0.01), "window_ms of at least a sample at 8000 Hz, found 0.01 ms"),
        (MelSettings(hop_ms=-3), "hop_ms of at least a sample at 8000 Hz, found -3 ms"),
        (MelSettings(low_hz=-1), "found -1 and 4000"),
        (MelSettings(low_hz=500, high_hz=400), "found 500 and 400"),
        (MelSettings(high_hz=4001), "<= 4000, half of the rate, found 20 and 4001"),
        (MelSettings(bands=120), "31.2 Hz apart: expected fewer than 120 bands, or a longer window_ms"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: MelSettings, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        LogMel(settings, RATE_HZ)


@pytest.mark.slow
def test_filters_and_frames_are_those_of_torchaudio() -> None:
    torchaudio = pytest.importorskip("torchaudio")
    torch = pytest.importorskip("torch")
    filters = torchaudio.functional.melscale_fbanks(129, 20.0, 4000.0, 40, RATE_HZ, norm=None, mel_scale="htk")
    np.testing.assert_allclose(mel_filters(MelSettings(), RATE_HZ, 256).T, filters.numpy(), rtol=0, atol=1e-4)
    transform = torchaudio.transforms.MelSpectrogram(
        RATE_HZ, n_fft=256, win_length=200, hop_length=80, f_min=20.0, f_max=4000.0, n_mels=40, center=False
    )
    samples = noise(RATE_HZ)
    around = np.pad(samples, 28)  # there the window lies in the middle of the transform
    expected = np.log(transform(torch.from_numpy(around)).numpy().T)
    np.testing.assert_allclose(LogMel(MelSettings(), RATE_HZ).frames(samples), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_filters_and_frames_are_those_of_librosa() -> None:
    librosa = pytest.importorskip("librosa")
    mel = {"sr": RATE_HZ, "n_fft": 256, "n_mels": 40, "fmin": 20.0, "fmax": 4000.0, "htk": True, "norm": None}
    np.testing.assert_allclose(mel_filters(MelSettings(), RATE_HZ, 256), librosa.filters.mel(**mel), rtol=0, atol=1e-4)
    samples = noise(RATE_HZ)
    around = np.pad(samples, 28)  # there the window lies in the middle of the transform
    energies = librosa.feature.melspectrogram(y=around, win_length=200, hop_length=80, center=False, **mel)
    expected = np.log(energies.T)
    np.testing.assert_allclose(LogMel(MelSettings(), RATE_HZ).frames(samples), expected, rtol=0, atol=1e-4)
