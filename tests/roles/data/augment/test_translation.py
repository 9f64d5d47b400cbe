"""Adam 3.1: each pass processes another variant of the same image; here, images moved by whole pixels."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.augment.translation import translate
from adamctl.roles.data.core import FILE_ORDER, Range, dataset_identity, translations
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.store import DataStore
from tests.roles.data.orders import whole_pass

WAIT_S = 20
SHAPE = (9, 7, 2)
TRAIN, TEST = 60, 10

seeds = st.integers(0, 2**63 - 1)
passes = st.integers(0, 10**6)
EXPECTED_OF_SEED_7 = [[-2, 2], [1, -1], [-1, -2], [-2, -2]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of bytes in which no two pixels of an example are alike, so that a pixel says where it comes from."""
    numbers = np.random.default_rng(3)
    images = [np.stack([numbers.permutation(prod(SHAPE)) + 1 for _ in range(n)]) for n in (TRAIN, TEST)]
    train, test = (each.reshape(-1, *SHAPE).astype(np.uint8) for each in images)
    labels = np.arange(TRAIN) % 10
    np.savez(tmp_path / "small.npz", x_train=train, y_train=labels, x_test=test, y_test=labels[:TEST])
    return tmp_path


@pytest.fixture
def open_store(folder: Path) -> Iterator[Callable[..., DataStore]]:
    stores: list[DataStore] = []

    def make(memory_bytes: int = 1 << 30) -> DataStore:
        stores.append(DataStore([str(folder)], threads=2, ahead=3, memory_bytes=memory_bytes))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def config(pixels: int = 2, scale: str = "unit", **more: float) -> DataConfig:
    return DataConfig(format="npz", source="small", scale=scale, translate=pixels, **more)  # type: ignore[arg-type]


def read(store: DataStore, dataset: OpenDataSet, wanted: Range) -> np.ndarray:
    results: queue.Queue[ReadyRange | Exception] = queue.Queue()
    ready: ReadyRange | Exception | None = store.read(dataset.name, Asked(wanted), results.put)
    if ready is None:
        ready = results.get(timeout=WAIT_S)
    assert isinstance(ready, ReadyRange), ready
    images = np.empty((ready.examples, *SHAPE), np.float32)
    dataset.scaling.write(np.frombuffer(ready.body, np.uint8, images.size).reshape(images.shape), images)
    ready.release()
    return images


def expected(images: np.ndarray, shifts: np.ndarray, border: float) -> np.ndarray:
    """The plain way: pixel by pixel."""
    out = np.full_like(images, border)
    _, height, width, _ = images.shape
    for number, (down, right) in enumerate(shifts):
        for y in range(max(down, 0), height + min(down, 0)):
            for x in range(max(right, 0), width + min(right, 0)):
                out[number, y, x] = images[number, y - down, x - right]
    return out


# --- where each image goes ------------------------------------------------------------------------------------------


@given(seeds, passes, st.integers(1, 300))
def test_where_an_image_goes_depends_on_seed_pass_and_its_index_only(seed: int, pass_number: int, pixels: int) -> None:
    indices = np.arange(100)
    drawn = translations(indices, seed, pass_number, pixels)
    assert drawn.shape == (100, 2) and np.abs(drawn).max() <= pixels
    np.testing.assert_array_equal(translations(indices[::-3], seed, pass_number, pixels), drawn[::-3])
    assert (translations(indices, seed, pass_number + 1, pixels) != drawn).any()
    assert (translations(indices, seed + 1, pass_number, pixels) != drawn).any()


def test_every_move_is_as_likely_and_the_two_directions_are_independent() -> None:
    """Over examples of a pass, and over passes of an example."""
    over_examples = translations(np.arange(25_000), 7, 3, 2)
    over_passes = np.concatenate([translations(np.array([11]), 7, pass_number, 2) for pass_number in range(5000)])
    for drawn in (over_examples, over_passes):
        counts = np.bincount((drawn[:, 0] + 2) * 5 + drawn[:, 1] + 2, minlength=25)
        even = len(drawn) / 25
        assert np.abs(counts - even).max() < 5 * even**0.5


def test_where_images_go_never_changes_between_releases() -> None:
    assert translations(np.arange(4), 7, 0, 2).tolist() == EXPECTED_OF_SEED_7


# --- moving ---------------------------------------------------------------------------------------------------------


@given(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3)), st.integers(0, 2**32))
def test_every_pixel_arrives_and_the_rest_is_border(shape: tuple[int, int, int], seed: int) -> None:
    chosen = np.random.default_rng(seed)
    images = chosen.random((8, *shape), np.float32)
    shifts = np.stack([chosen.integers(1 - side, side, 8) for side in shape[:2]], axis=1)
    moved = images.copy()
    translate(moved, shifts, -0.5)
    np.testing.assert_array_equal(moved, expected(images, shifts, -0.5))
    as_bytes = (256 * images).astype(np.uint8)
    moved_bytes = as_bytes.copy()
    translate(moved_bytes, shifts, 0)
    np.testing.assert_array_equal(moved_bytes, expected(as_bytes, shifts, 0))


# --- as data servers give them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["unit", "standard", "none"])
@pytest.mark.parametrize("memory_bytes", [1 << 30, 100])
def test_training_images_are_moved_and_the_border_is_a_zero_byte(
    open_store: Callable[..., DataStore], scale: str, memory_bytes: int
) -> None:
    store = open_store(memory_bytes)
    plain, moved = store.open(config(0, scale), SHAPE, 7), store.open(config(2, scale), SHAPE, 7)
    raw = np.load(store.search[0] + "/small.npz")["x_train"].astype(np.float64)
    border = {"unit": 0.0, "none": 0.0, "standard": -raw.mean() / raw.std()}[scale]
    for pass_number in (0, 1):
        wanted = Range("train", pass_number, 5, 45)
        shifts = translations(whole_pass(moved, "train", pass_number)[5:45], 7, pass_number, 2)
        got = read(store, moved, wanted)
        np.testing.assert_allclose(got, expected(read(store, plain, wanted), shifts, border), rtol=1e-5)


def test_two_servers_and_a_range_read_again_give_the_same(open_store: Callable[..., DataStore]) -> None:
    first, second = open_store(), open_store(memory_bytes=0)
    ours, theirs = (store.open(config(), SHAPE, 7) for store in (first, second))
    whole = read(first, ours, Range("train", 4, 0, TRAIN))
    np.testing.assert_array_equal(read(first, ours, Range("train", 4, 0, TRAIN)), whole)
    parts = [read(second, theirs, Range("train", 4, start, start + 20)) for start in range(0, TRAIN, 20)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_passes_see_different_variants_of_the_same_image(open_store: Callable[..., DataStore]) -> None:
    store = open_store()
    dataset = store.open(config(), SHAPE, 7)
    variants = []
    for pass_number in range(12):
        position = whole_pass(dataset, "train", pass_number).tolist().index(17)
        variants.append(read(store, dataset, Range("train", pass_number, position, position + 1)).tobytes())
    assert len(set(variants)) > 5


def test_validation_test_and_file_order_are_never_moved(open_store: Callable[..., DataStore]) -> None:
    store = open_store()
    plain, moved = (store.open(config(pixels, validation=0.2), SHAPE, 7) for pixels in (0, 2))
    for split, pass_number, count in (
        ("test", 0, TEST), ("test", FILE_ORDER, TEST), ("train", FILE_ORDER, 48), ("validation", FILE_ORDER, 12),
        ("validation", 3, 12),
    ):  # fmt: skip
        wanted = Range(split, pass_number, 0, count)
        np.testing.assert_array_equal(read(store, moved, wanted), read(store, plain, wanted))
    wanted = Range("train", 0, 0, 48)
    assert (read(store, moved, wanted) != read(store, plain, wanted)).any()


def test_it_is_part_of_what_a_data_set_is() -> None:
    assert dataset_identity(config(1), SHAPE, 7) != dataset_identity(config(2), SHAPE, 7)


@pytest.mark.parametrize(
    ("shape", "pixels", "message"),
    [
        ((prod(SHAPE),), 1, r"data.translate = 1: it moves images.*\[126\].*\[height, width, channels\]"),
        (SHAPE, 4, "data.translate = 4: expected at least 0 and less than half of the images' height and width, 9 x 7"),
        (SHAPE, -1, "data.translate = -1: expected at least 0"),
    ],
)
def test_what_cannot_be_moved_is_refused(
    open_store: Callable[..., DataStore], shape: tuple[int, ...], pixels: int, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        open_store().open(config(pixels), shape, 7)
