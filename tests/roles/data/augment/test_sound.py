"""Augmentation of sound: each step against what the same change of samples would give, or by its own terms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.augment import AugmentConfig, SoundConfig
from adamctl.config.data import DataConfig, FeaturesConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.augment.augmenter import Augmenter
from adamctl.roles.data.augment.chance import keys_of
from adamctl.roles.data.augment.sound import augment_sound
from adamctl.roles.data.core import FILE_ORDER, Range
from adamctl.roles.data.readers.audio import AudioSource
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.speech.log_mel import LogMel, MelSettings
from tests.roles.data.orders import whole_pass
from tests.roles.data.speech.sounds import RATE_HZ, noise, write_recordings

FRAMES, BANDS = 7, 5
EVERYTHING = SoundConfig(gain=6, noise=0.2, shift=2, mask_frames=3, mask_bands=2)


def examples(n: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).normal(-2, 3, (n, FRAMES, BANDS)).astype(np.float32)


def augmented(frames: NDArray[np.float32], seed: int = 7, pass_number: int = 0, **keys: Any) -> NDArray[np.float32]:
    out = frames.copy()
    augment_sound(out, keys_of(np.arange(len(frames)), seed, pass_number), SoundConfig(**keys))
    return out


def test_gain_is_what_louder_samples_have() -> None:
    """The features of samples times a factor are those of the samples plus twice its logarithm."""
    log_mel, samples = LogMel(MelSettings(bands=BANDS), RATE_HZ), noise(1200, 1)
    quiet, loud = log_mel.frames(samples), log_mel.frames(samples * np.float32(10 ** (3 / 20)))
    np.testing.assert_allclose(loud - quiet, 3 * math.log(10) / 10, atol=1e-4)
    frames = np.repeat(quiet[None, :FRAMES], 2000, axis=0)
    added = augmented(frames, gain=3) - frames
    assert np.ptp(added, axis=(1, 2)).max() < 1e-4
    of_example = added[:, 0, 0]
    assert np.abs(of_example).max() <= 3 * math.log(10) / 10
    assert abs(of_example.mean()) < 0.03 and abs(of_example.std() - 3 * math.log(10) / 10 / math.sqrt(3)) < 0.02


def test_noise_adds_its_power_to_that_of_the_sound() -> None:
    frames = np.repeat(examples(1), 20000, axis=0)
    added = np.exp(augmented(frames, noise=0.4).astype(np.float64)) - np.exp(frames.astype(np.float64))
    power = np.exp(frames[0].mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(added.mean(axis=0) / power, 0.2, rtol=0.05)  # r is 0.2 in the mean
    np.testing.assert_allclose(added[:, 0, 0].std() / power[0], math.sqrt(0.16 / 3 * 4 / 3 - 0.04), rtol=0.05)
    assert added.min() > -1e-6 * np.exp(frames.max())


def test_noise_of_features_is_about_that_of_samples() -> None:
    """Noise of the sound's own spectrum, at a tenth of its power: where sound is white, both are."""
    log_mel, samples = LogMel(MelSettings(bands=BANDS), RATE_HZ), noise(80_000, 1)
    together = log_mel.frames(samples + np.float32(math.sqrt(0.1)) * noise(80_000, 2)).mean(axis=0)
    frames = log_mel.frames(samples)[: 142 * FRAMES].reshape(142, FRAMES, BANDS)
    found = np.mean(
        [augmented(frames, noise=0.2, pass_number=number).mean(axis=(0, 1)) for number in range(20)], axis=0
    )
    np.testing.assert_allclose(
        found - log_mel.frames(samples).mean(axis=0), together - log_mel.frames(samples).mean(axis=0), atol=0.03
    )


def test_a_shift_reads_earlier_or_later_frames() -> None:
    frames = examples(3000)
    out = augmented(frames, shift=2)
    found = []
    for before, after in zip(frames, out, strict=True):
        steps = [
            s for s in range(-2, 3) if np.array_equal(after, before[np.clip(np.arange(FRAMES) + s, 0, FRAMES - 1)])
        ]
        assert len(steps) == 1
        found += steps
    assert (np.abs(np.bincount(np.array(found) + 2) - 600) < 120).all()


@pytest.mark.parametrize(("key", "axis", "of"), [("mask_frames", 0, FRAMES), ("mask_bands", 1, BANDS)])
def test_masks_hide_neighbours_behind_the_mean(key: str, axis: int, of: int) -> None:
    frames = examples(4000)
    out = augmented(frames, **{key: 3})
    widths, places = [], np.zeros(of)
    for before, after in zip(frames, out, strict=True):
        changed = (after != before).any(axis=1 - axis)
        hidden = np.flatnonzero(changed)
        widths.append(len(hidden))
        places += changed
        assert len(hidden) == 0 or np.ptp(hidden) == len(hidden) - 1
        np.testing.assert_allclose(np.take(after, hidden, axis), before.mean(), atol=1e-4)
    assert (np.abs(np.bincount(widths) - 1000) < 150).all()
    assert np.abs(places - places[::-1]).max() < 250 and places.min() > 500  # edges are in fewer spans than the middle


def test_draws_depend_on_seed_pass_and_example_alone() -> None:
    frames, config = np.repeat(examples(1), 50, axis=0), EVERYTHING
    keys = {name: getattr(config, name) for name in config.__struct_fields__}
    whole = augmented(frames, **keys)
    some = frames[:10].copy()
    augment_sound(some, keys_of(np.arange(20, 30), 7, 0), config)
    np.testing.assert_array_equal(some, whole[20:30])
    assert len(np.unique(whole.reshape(50, -1), axis=0)) == 50
    for other in ({"seed": 8}, {"pass_number": 1}):
        assert (augmented(frames, **other, **keys) != whole).reshape(50, -1).any(axis=1).all()


def test_one_setting_does_not_change_the_draws_of_another() -> None:
    frames = examples(20)
    louder = augmented(frames, gain=6) - frames
    both = augmented(frames, gain=6, shift=2)
    shifted = augmented(frames, shift=2)
    np.testing.assert_allclose(both - shifted, louder, atol=1e-5)


def test_only_training_examples_of_shuffled_passes_change(tmp_path: Path) -> None:
    write_recordings(tmp_path, {f"{digit}_a_{index}.wav": 1500 for digit in range(2) for index in range(3)})
    config = DataConfig(
        format="audio", source=str(tmp_path), class_from="name", test_files="*_0.wav", validation=0.3, scale="none",
        features=FeaturesConfig(bands=BANDS, context=3),
        augment=AugmentConfig(sound=SoundConfig(mask_bands=3, noise=0.3)),
    )  # fmt: skip
    source = AudioSource(tmp_path, (35,), config, 1 << 20)
    dataset = OpenDataSet("x", config, source, 7, 0)

    def changed(split: str, pass_number: int) -> bool:
        count = dataset.examples[split]
        found, plain = np.empty((count, 35), np.float32), np.empty((count, 35), np.float32)
        dataset.gather(Range(split, pass_number, 0, count), found, np.empty(count, np.int32))
        source.load("test" if split == "test" else "train", whole_pass(dataset, split, pass_number), plain)
        return bool((found != plain).any(axis=1).all())

    assert changed("train", 0) and changed("train", 1)
    assert not any(changed(split, number) for split in ("validation", "test") for number in (FILE_ORDER, 0))
    assert not changed("train", FILE_ORDER)


def test_examples_that_are_no_sound_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"data\.augment\.sound: these examples are no frames of sound"):
        Augmenter(AugmentConfig(sound=EVERYTHING), (35,), np.dtype(np.float32), 7, 0)
