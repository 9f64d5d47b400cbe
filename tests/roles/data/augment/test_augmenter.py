"""What `[data.augment]` does to examples: each part by itself, together, and alike for any number of servers."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.augment import AugmentConfig, ElasticConfig
from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.kernels.numeric.warp import warp
from adamctl.roles.data.augment import augmenter as module
from adamctl.roles.data.augment.augmenter import Augmenter
from adamctl.roles.data.augment.chance import keys_of
from adamctl.roles.data.augment.drawing import draw_tones, draw_warps, ranges_of
from adamctl.roles.data.core import FILE_ORDER, Range, dataset_identity
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.store import DataStore

SHAPE = (9, 8, 2)
EVERYTHING = AugmentConfig(
    rotate=10, scale=0.1, shear=0.1, translate=1.5, reflect=True, elastic=ElasticConfig(sigma=3, alpha=20),
    brightness=0.2, contrast=0.3, crop=2,
)  # fmt: skip
TYPES = [np.uint8, np.float32]


def images_of(n: int, dtype: type = np.uint8) -> NDArray[Any]:
    images = np.random.default_rng(4).integers(0, 256, (n, *SHAPE), np.uint8)
    return images if dtype is np.uint8 else (images / np.float32(255)).astype(np.float32)


def augmenter(config: AugmentConfig, dtype: type = np.uint8, **more: Any) -> Augmenter:
    white = more.pop("white", 255 if dtype is np.uint8 else 1)
    return Augmenter(config, SHAPE, np.dtype(dtype), 7, more.pop("border", 0), white, **more)


def applied(made: Augmenter, images: NDArray[Any], pass_number: int = 3) -> NDArray[Any]:
    out = images.copy()
    made.apply(out, np.arange(len(images)), pass_number)
    return out


# --- what it does ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_one_warp_does_all_that_moves_pixels(dtype: type) -> None:
    images = images_of(12, dtype)
    config = AugmentConfig(rotate=10, scale=0.1, translate=1.5, reflect=True, elastic=EVERYTHING.elastic, crop=2)
    expected = images.copy()
    warp(expected, draw_warps(np.arange(12), 7, 3, ranges_of(config), *SHAPE[:2]), 0)
    np.testing.assert_array_equal(applied(augmenter(config, dtype), images), expected)
    assert (expected != images).reshape(12, -1).any(axis=1).all()


def test_nothing_is_asked_for_by_default() -> None:
    made = augmenter(AugmentConfig())
    assert not made.changes
    np.testing.assert_array_equal(applied(made, images_of(3)), images_of(3))
    assert augmenter(EVERYTHING).changes and augmenter(AugmentConfig(), translate=1).changes


def test_crop_cuts_out_of_the_padded_image() -> None:
    images = images_of(60)
    padded = np.pad(images, ((0, 0), (3, 3), (3, 3), (0, 0)))
    cut = applied(augmenter(AugmentConfig(crop=3)), images)
    places = set()
    for image, whole in zip(cut, padded, strict=True):
        found = [
            (y, x) for y in range(7) for x in range(7)
            if np.array_equal(whole[y : y + SHAPE[0], x : x + SHAPE[1]], image)
        ]  # fmt: skip
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 25


@pytest.mark.parametrize("dtype", TYPES)
def test_brightness_and_contrast_change_values_about_grey(dtype: type) -> None:
    images = images_of(40, dtype)
    got = applied(augmenter(AugmentConfig(brightness=0.2, contrast=0.3), dtype), images).astype(np.float64)
    white = 255 if dtype is np.uint8 else 1
    factors, shifts = draw_tones(keys_of(np.arange(40), 7, 3), 0.2, 0.3)
    assert 0.7 <= factors.min() < 0.8 and 1.2 < factors.max() <= 1.3
    grey = shifts + factors / 2
    assert 0.3 <= grey.min() < 0.35 and 0.65 < grey.max() <= 0.7
    expected = images.reshape(40, -1) * factors.astype(np.float64) + white * shifts
    if dtype is np.uint8:
        expected = np.clip(expected, 0, 255)
    np.testing.assert_allclose(got.reshape(40, -1), expected, rtol=0, atol=0.51 if dtype is np.uint8 else 1e-6)


def test_values_are_changed_where_black_and_white_are_other_numbers() -> None:
    images, config = images_of(9, np.float32), AugmentConfig(brightness=0.2, contrast=0.3)
    unit = applied(augmenter(config, np.float32), images)
    scaled = applied(augmenter(config, np.float32, border=-0.5, white=2.5), images * 3 - np.float32(0.5))
    np.testing.assert_allclose(scaled, unit * 3 - 0.5, rtol=0, atol=1e-5)


def test_bytes_of_another_white_are_changed_by_shares_of_it() -> None:
    levels, config = images_of(40) // 16, AugmentConfig(brightness=0.2, contrast=0.3)  # 0 .. 15
    got = applied(augmenter(config, white=15), levels)
    as_numbers = applied(augmenter(config, np.float32, white=15), levels.astype(np.float32))
    np.testing.assert_array_equal(got, np.clip(np.rint(as_numbers), 0, 15).astype(np.uint8))
    assert got.max() == 15 and (got.reshape(40, -1).max(axis=1) > 0).all()


def test_what_is_uncovered_is_border() -> None:
    grey = np.full((20, *SHAPE), 9, np.float32)
    got = applied(augmenter(AugmentConfig(crop=3), np.float32, border=-0.5), grey)
    assert set(np.unique(got)) == {-0.5, 9.0}


# --- on what it depends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_a_variant_depends_on_seed_pass_and_example_alone(dtype: type) -> None:
    images, made = images_of(30, dtype), augmenter(EVERYTHING, dtype)
    whole, backwards = applied(made, images), images[::-1].copy()
    made.apply(backwards, np.arange(30)[::-1], 3)
    np.testing.assert_array_equal(backwards[::-1], whole)
    assert (applied(made, images, 4) != whole).reshape(30, -1).any(axis=1).all()
    other = Augmenter(EVERYTHING, SHAPE, np.dtype(dtype), 8, 0, 255 if dtype is np.uint8 else 1)
    assert (applied(other, images) != whole).any()


def test_passes_share_a_variant_as_reuse_says() -> None:
    images, made = images_of(20), augmenter(AugmentConfig(rotate=20, reuse=3), translate=2)
    variants = [applied(made, images, number).tobytes() for number in range(9)]
    assert [variants.index(one) for one in variants] == [0, 0, 0, 3, 3, 3, 6, 6, 6]


def test_many_examples_are_changed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    images, made = images_of(20), augmenter(EVERYTHING)
    whole = applied(made, images)
    drawn: list[int] = []
    monkeypatch.setattr(
        module, "draw_warps", lambda indices, *more: drawn.append(len(indices)) or draw_warps(indices, *more)
    )
    for at_once, parts in ((3 * images[0].size, [3] * 6 + [2]), (1, [1] * 20)):
        monkeypatch.setattr(module, "AT_ONCE", at_once)
        np.testing.assert_array_equal(applied(made, images), whole)
        assert drawn == parts
        drawn.clear()


def test_any_number_of_threads_makes_the_same() -> None:
    images, made = images_of(64, np.float32), augmenter(EVERYTHING, np.float32)
    whole, parts, indices = applied(made, images), images.copy(), np.arange(64)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda at: made.apply(parts[at : at + 8], indices[at : at + 8], 3), range(0, 64, 8)))
    np.testing.assert_array_equal(parts, whole)


# --- as data servers give them --------------------------------------------------------------------------------------


def config_of(augment: AugmentConfig) -> DataConfig:
    return DataConfig(format="npz", source="small", validation=0.25, augment=augment)


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    images, labels = images_of(60), np.arange(60) % 10
    np.savez(tmp_path / "small.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])

    def open_set(augment: AugmentConfig, budget_bytes: int = 1 << 30) -> OpenDataSet:
        config = config_of(augment)
        return OpenDataSet("x", config, open_source(config, tmp_path / "small.npz", SHAPE), 7, budget_bytes)

    return open_set


def gathered(dataset: OpenDataSet, split: str, pass_number: int, start: int, stop: int) -> NDArray[Any]:
    images = np.empty((stop - start, dataset.form.elements), dataset.form.numpy_dtype)
    dataset.gather(Range(split, pass_number, start, stop), images, np.empty(stop - start, np.int32))
    return images


def test_servers_with_and_without_memory_make_the_same_variants_of_any_parts(opened: Any) -> None:
    one, other = opened(EVERYTHING), opened(EVERYTHING, 0)
    whole = gathered(one, "train", 2, 0, 45)
    parts = [gathered(other, "train", 2, start, start + 9) for start in range(0, 45, 9)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (gathered(one, "train", 3, 0, 45) != whole).any()


def test_servers_with_any_number_of_threads_serve_the_same_variants(opened: Any, tmp_path: Path) -> None:
    dataset, served = opened(EVERYTHING), []
    for threads, length in ((1, 45), (3, 15)):
        store = DataStore([str(tmp_path)], threads=threads)
        try:
            name = store.open(config_of(EVERYTHING), SHAPE, 7).name
            parts = [Range("train", 1, start, start + length) for start in range(0, 45, length)]
            served.append(b"".join(read(store, name, part, dataset.form.example_bytes) for part in parts))
        finally:
            store.close()
    assert served == [gathered(dataset, "train", 1, 0, 45).tobytes()] * 2


def read(store: DataStore, name: str, wanted: Range, example_bytes: int) -> bytes:
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    ready: ReadyRange | Exception | None = store.read(name, Asked(wanted), results.put)
    if ready is None:
        ready = results.get(timeout=20)
    assert isinstance(ready, ReadyRange), ready
    body = bytes(ready.body[: ready.examples * example_bytes])
    ready.release()
    return body


def test_validation_test_and_file_order_stay_as_they_are(opened: Any) -> None:
    plain, changed = opened(AugmentConfig()), opened(EVERYTHING)
    for split, pass_number, count in (
        ("test", 0, 20), ("test", FILE_ORDER, 20), ("train", FILE_ORDER, 45), ("validation", 3, 15),
        ("validation", FILE_ORDER, 15),
    ):  # fmt: skip
        np.testing.assert_array_equal(
            gathered(changed, split, pass_number, 0, count), gathered(plain, split, pass_number, 0, count)
        )
    assert (gathered(changed, "train", 0, 0, 45) != gathered(plain, "train", 0, 0, 45)).any()


def test_it_is_part_of_what_a_data_set_is() -> None:
    plain, changed = config_of(AugmentConfig()), config_of(AugmentConfig(elastic=ElasticConfig(alpha=1)))
    assert dataset_identity(plain, SHAPE, 7) != dataset_identity(changed, SHAPE, 7)


# --- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "shape", "message"),
    [
        (AugmentConfig(rotate=5), (72,), r"data.augment.rotate: it changes images.*found \[72\]"),
        (AugmentConfig(translate=4), SHAPE, "data.augment.translate: found 4; expected less than half of .* 9 x 8"),
        (AugmentConfig(crop=8), SHAPE, "data.augment.crop: found 8; expected less than .* 9 x 8"),
        (AugmentConfig(rotate=float("nan")), SHAPE, "data.augment.rotate: expected at least 0 and at most 180; found"),
        (AugmentConfig(reuse=0), SHAPE, "data.augment.reuse: expected at least 1; found 0"),
    ],
)
def test_what_cannot_be_done_is_refused(config: AugmentConfig, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Augmenter(config, shape, np.dtype(np.uint8), 7, 0)
