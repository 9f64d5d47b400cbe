"""What `[data]` cannot say, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from adamctl.config.augment import IMAGE_KEYS, AugmentConfig, ElasticConfig, SoundConfig
from adamctl.config.data import ColumnsConfig, DataConfig, FeaturesConfig
from adamctl.config.data_conflicts import data_problems


@pytest.mark.parametrize(
    ("data", "key", "said"),
    [
        (DataConfig(format="digits", source="mnist"), "format", 'found "digits" with source = "mnist"'),
        (DataConfig(format="idx", source="digits"), "source", "needs a path or a name"),
        (DataConfig(format="idx", source=""), "source", "needs a path or a name"),
        (
            DataConfig(decoder="opencv"),
            "decoder",
            'with format = "digits"; expected "parquet" or "imagefolder" or "tar":',
        ),
        (DataConfig(stratify=True), "stratify", "found true but data.validation is 0; set data.validation"),
        (DataConfig(order="blocks", validation=0.1, stratify=True), "order", "whole blocks are held out"),
        (DataConfig(order="examples", window_blocks=8), "window_blocks", 'expected "auto" or "blocks"'),
        (DataConfig(sampling={}), "sampling", 'found an empty table; give classes weights, or set it to "all"'),
        (DataConfig(format="npz", source="s3://b/x", disk_cache="much"), "disk_cache", "expected a size above 0"),
        (
            DataConfig(format="npz", source="./x", disk_cache="1GB"),
            "disk_cache",
            "data.source is no URL",
        ),
        (DataConfig(format="npz", source="s3://b/../x"), "source", "expected one URL such as"),
        (DataConfig(translate=4), "translate", "expected less than half of the images' height and width, 8 x 8"),
    ],
)
def test_conflicts(data: DataConfig, key: str, said: str) -> None:
    (problem,) = data_problems(data, (8, 8, 1))
    assert problem.path == ("data", key)
    assert said in problem.message


def test_only_tables_have_columns() -> None:
    columns = ColumnsConfig(label="species")
    (problem,) = data_problems(DataConfig(columns=columns), (8, 8, 1))
    assert str(problem) == 'data.columns: with format = "digits"; expected "csv" or "parquet": leave it out'
    for format in ("csv", "of another package"):
        assert not data_problems(DataConfig(format=format, source="table", columns=columns), (4,))


def test_a_weight_below_zero_is_named() -> None:
    (problem,) = data_problems(DataConfig(sampling={"cat": 1.0, "dog": -2.0}), (8, 8, 1))
    assert str(problem) == "data.sampling.dog: found -2.0; expected a weight of at least 0"


def test_only_images_move() -> None:
    (problem,) = data_problems(DataConfig(translate=1), (64,))
    assert str(problem).startswith("data.translate: found 1; it moves images, so model.input must be")


IMAGE_SETTINGS = (
    AugmentConfig(rotate=5), AugmentConfig(scale=0.1), AugmentConfig(shear=0.1), AugmentConfig(translate=0.5),
    AugmentConfig(reflect=True), AugmentConfig(elastic=ElasticConfig(alpha=34)), AugmentConfig(brightness=0.1),
    AugmentConfig(contrast=0.1), AugmentConfig(crop=1),
)  # fmt: skip


def test_augmentation_of_images_is_refused_for_other_examples() -> None:
    for augment, key in zip(IMAGE_SETTINGS, IMAGE_KEYS, strict=True):
        (problem,) = data_problems(DataConfig(augment=augment), (64,))
        assert problem.path == ("data", "augment", key)
        assert "model.input must be [height, width, channels], found [64]" in problem.message
        assert not data_problems(DataConfig(augment=augment), (8, 8, 1))
    assert not data_problems(DataConfig(augment=AugmentConfig(reuse=3)), (64,))


@pytest.mark.parametrize(
    ("augment", "key", "said"),
    [
        (
            AugmentConfig(translate=4),
            "translate",
            "found 4; expected less than half of the images' height and width, 8",
        ),
        (AugmentConfig(crop=8), "crop", "found 8; expected less than the images' height and width, 8 x 8"),
    ],
)
def test_images_stay_within_their_size(augment: AugmentConfig, key: str, said: str) -> None:
    (problem,) = data_problems(DataConfig(augment=augment), (8, 8, 1))
    assert problem.path == ("data", "augment", key) and said in problem.message


def test_none() -> None:
    assert not data_problems(DataConfig(translate=3), (8, 8, 1))
    assert not data_problems(DataConfig(format="idx", source="mnist"), (28, 28, 1))


@pytest.mark.parametrize("format", ["idx", "npz", "npy"])
@pytest.mark.parametrize(("key", "value"), [("test_files", "*_0.wav"), ("class_from", "name")])
def test_formats_that_are_not_made_of_files_refuse_keys_about_their_names(format: str, key: str, value: str) -> None:
    config = DataConfig(format=format, source="mnist", **{key: value})  # type: ignore[arg-type]
    (problem,) = data_problems(config, (8, 8, 1))
    assert problem.path == ("data", key) and f'found "{value}" with format = "{format}"' in problem.message
    assert "leave it out" in problem.message


def test_a_pattern_of_names_has_no_folders() -> None:
    config = DataConfig(format="imagefolder", source="./x", test_files="a/*.jpg")
    (problem,) = data_problems(config, (8, 8, 3))
    assert problem.path == ("data", "test_files") and "without folders" in problem.message
    assert not data_problems(DataConfig(format="imagefolder", source="./x", test_files="*.jpg"), (8, 8, 3))
    assert not data_problems(DataConfig(format="theirs", source="./x", test_files="*.jpg"), (8, 8, 3))


def test_windows_are_of_blocks() -> None:
    assert not data_problems(DataConfig(order="blocks", window_blocks=8, validation=0.1), (8, 8, 1))
    assert not data_problems(DataConfig(window_blocks=8), (8, 8, 1))
    assert not data_problems(DataConfig(order="blocks", sampling="balanced"), (8, 8, 1))


@pytest.mark.parametrize(
    ("keys", "shape", "path", "said"),
    [
        ({}, (400,), ("model", "input"), "found [400]; expected [440]: 11 frames of 40 bands"),
        ({"features": FeaturesConfig(context=0)}, (440,), ("model", "input"), "expected [40]: 1 frames of 40 bands"),
        (
            {"features": FeaturesConfig(high_hz=20)},
            (440,),
            ("data", "features", "high_hz"),
            "found 20 with low_hz = 20",
        ),
        ({"alignment": "a/b.txt"}, (440,), ("data", "alignment"), "without folders"),
    ],
)
def test_features_of_sound_and_the_models_input_fit(
    keys: dict[str, Any], shape: tuple[int, ...], path: tuple[str, ...], said: str
) -> None:
    (problem,) = data_problems(DataConfig(format="audio", source="fsdd", **keys), shape)
    assert problem.path == path and said in problem.message
    assert not data_problems(DataConfig(format="audio", source="fsdd"), (440,))


@pytest.mark.parametrize("keys", [{"features": FeaturesConfig(bands=8)}, {"alignment": "a.txt"}])
def test_only_sound_has_features_and_alignments(keys: dict[str, Any]) -> None:
    (problem,) = data_problems(DataConfig(format="npz", source="frames", **keys), (440,))
    assert problem.path == ("data", next(iter(keys))) and 'with format = "npz"; expected "audio"' in problem.message
    assert not data_problems(DataConfig(format="theirs", source="frames", **keys), (440,))


@pytest.mark.parametrize(
    ("sound", "key", "said"),
    [
        (SoundConfig(gain=6), "gain", "found 6 with data.features.center = true, which takes it out again"),
        (SoundConfig(shift=6), "shift", "found 6; expected at most data.features.context, 5"),
        (SoundConfig(mask_frames=11), "mask_frames", "expected fewer than the 11 frames of an example"),
        (SoundConfig(mask_bands=40), "mask_bands", "expected fewer than data.features.bands, 40"),
    ],
)
def test_augmentation_of_sound_fits_its_frames(sound: SoundConfig, key: str, said: str) -> None:
    data = DataConfig(format="audio", source="fsdd", augment=AugmentConfig(sound=sound))
    (problem,) = data_problems(data, (440,))
    assert problem.path == ("data", "augment", "sound", key) and said in problem.message


def test_augmentation_of_sound_is_refused_for_other_examples() -> None:
    augment = AugmentConfig(sound=SoundConfig(noise=0.1))
    (problem,) = data_problems(DataConfig(augment=augment), (64,))
    assert str(problem) == 'data.augment.sound: with format = "digits"; expected "audio": leave it out'
    assert not data_problems(DataConfig(format="audio", source="fsdd", augment=augment), (440,))
    uncentred = DataConfig(
        format="audio",
        source="fsdd",
        features=FeaturesConfig(center=False),
        augment=AugmentConfig(sound=SoundConfig(gain=6)),
    )
    assert not data_problems(uncentred, (440,))
