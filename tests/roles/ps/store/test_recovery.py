"""Damage to a log's file: it never crashes a server, and nothing that is wrong is served (I10)."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.ps.store.lmdb_log import LogStore
from adamctl.roles.ps.store.lmdb_pages import values_of
from adamctl.roles.ps.store.recovery import READERS, StoredRecord, read_log
from tests.roles.ps.store_images import PAGE_BYTES, contents, fill, open_all, put


def sound_log(folder: Path, seed: int) -> tuple[bytes, dict[int, int]]:
    store = LogStore(folder)
    last = fill(store, Random(seed), 8)
    store.close()
    return (folder / "log.mdb").read_bytes(), last


def test_a_sound_log_is_read_whole(tmp_path: Path) -> None:
    _, last = sound_log(tmp_path, 1)
    for readers in (1, READERS):
        found = read_log(tmp_path / "log.mdb", readers=readers)
        assert [record.sequence for record in found.found] == list(range(found.anchor.first, found.anchor.next))
        assert len(found.arrays) == len(last), "of each shard the last"
    assert not read_log(tmp_path / "log.mdb", keep=False).arrays


def verify(images: list[bytes], last: dict[int, int], tmp_path: Path) -> tuple[int, int]:
    """Every image is refused as damaged, or holds what was written and can be written to; returns how many of each."""
    folders = [put(tmp_path / f"image-{number}", image) for number, image in enumerate(images)]
    refused = 0
    for number, opening in enumerate(open_all(folders)):
        if opening.contents is None:
            refused += 1
            assert not opening.sound and opening.problem.startswith("DamagedDataError"), f"{number}: {opening}"
        else:
            assert opening.contents == last, f"image {number}"
            assert not opening.problem, f"{number}: {opening}"
    return refused, len(images) - refused


def truncations(tmp_path: Path, count: int, seed: int) -> None:
    image, last = sound_log(tmp_path / "log", seed)
    chance = Random(seed)
    lengths = [chance.randrange(len(image)) for _ in range(count // 2)]
    lengths += [PAGE_BYTES * chance.randrange(len(image) // PAGE_BYTES) for _ in range(count // 2)]
    refused, _ = verify([image[:length] for length in lengths], last, tmp_path)
    assert refused > count // 2


def flips(tmp_path: Path, count: int, seed: int, first_page: int = 0, pages: int = 1 << 30) -> int:
    image, last = sound_log(tmp_path / "log", seed)
    chance = Random(seed)
    start, stop = first_page * PAGE_BYTES, min(len(image), (first_page + pages) * PAGE_BYTES)
    images = []
    for _ in range(count):
        damaged = bytearray(image)
        for _ in range(chance.choice([1, 1, 1, 2, 30])):
            damaged[chance.randrange(start, stop)] ^= 1 << chance.randrange(8)
        images.append(bytes(damaged))
    return verify(images, last, tmp_path)[0]


def test_a_truncated_file_is_refused_and_crashes_nobody(tmp_path: Path) -> None:
    truncations(tmp_path, 30, 1)


def test_flipped_bits_are_refused_or_do_not_matter(tmp_path: Path) -> None:
    assert flips(tmp_path, 40, 1) > 5


def test_flipped_bits_in_the_roots_lose_nothing(tmp_path: Path) -> None:
    """There are two, and both hold everything that was acknowledged."""
    flips(tmp_path, 40, 2, 0, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 8))
def test_truncations_and_flips_in_numbers(tmp_path: Path, seed: int) -> None:
    truncations(tmp_path / "cut", 100, seed)
    flips(tmp_path / "flipped", 200, seed)
    flips(tmp_path / "roots", 100, seed, 0, 2)


def small_log(folder: Path) -> bytes:
    """A log of a few records of a hundred bytes or two, its free pages left out."""
    store = LogStore(folder)
    fill(store, Random(9), 3, shards=2, size=5)
    store.close()
    return (folder / "log.mdb").read_bytes()


def read(folder: Path, image: bytes) -> list[StoredRecord]:
    (folder / "log.mdb").write_bytes(image)
    return list(read_log(folder / "log.mdb", readers=1).found)


def every_bit_of_the_records(folder: Path, step: int) -> None:
    """The file cannot tell of a flipped bit in its values: our checksums do."""
    image = small_log(folder)
    with open(folder / "log.mdb", "rb") as file:
        values = [value for value in values_of(file.fileno()) if len(value.key) == 8]
    assert len(values) >= 3
    for value in values:
        for bit in range(8 * value.offset, 8 * (value.offset + value.size), step):
            damaged = bytearray(image)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(DamagedDataError):
                read(folder, damaged)


def every_length(folder: Path, step: int) -> None:
    """A file cut anywhere is refused, or nothing was cut off but free pages."""
    image = small_log(folder)
    whole, refused = read(folder, image), 0
    for length in range(0, len(image), step):
        try:
            assert read(folder, image[:length]) == whole, length
        except DamagedDataError:
            refused += 1
    assert refused


def test_flipped_bits_of_the_records_are_noticed(tmp_path: Path) -> None:
    every_bit_of_the_records(tmp_path, 7)


def test_a_file_cut_anywhere_is_refused_or_lacks_nothing(tmp_path: Path) -> None:
    every_length(tmp_path, 61)


@pytest.mark.slow
def test_every_flipped_bit_of_the_records_and_every_length_of_the_file(tmp_path: Path) -> None:
    every_bit_of_the_records(tmp_path / "flipped", 1)
    every_length(tmp_path / "cut", 1)


def test_damage_is_told_with_what_to_do(tmp_path: Path) -> None:
    image, _ = sound_log(tmp_path, 1)
    os.truncate(tmp_path / "log.mdb", len(image) // 2)
    with pytest.raises(DamagedDataError, match=r"(?s)log\.mdb is damaged: .*last checkpoint") as caught:
        LogStore(tmp_path)
    assert caught.value.exit_code == 5


def test_a_record_that_is_missing_is_named(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    fill(store, Random(1), 2)
    assert store._environment is not None
    middle = store.next_sequence - 2
    with store._environment.begin(write=True) as transaction:
        assert transaction.delete(middle.to_bytes(8, "big"))
    store.close()
    with pytest.raises(DamagedDataError, match=f"record {middle}: "):
        LogStore(tmp_path)


def test_a_key_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert store._environment is not None
    with store._environment.begin(write=True) as transaction:
        transaction.put(b"something", b"else")
    store.close()
    with pytest.raises(DamagedDataError, match="found the key"):
        LogStore(tmp_path)


def test_an_older_copy_of_the_same_file_is_sound(tmp_path: Path) -> None:
    """What cannot be told apart from the truth: it was the truth."""
    store = LogStore(tmp_path / "log")
    last = fill(store, Random(1), 3)
    older = put(tmp_path / "older", (tmp_path / "log" / "log.mdb").read_bytes())
    fill(store, Random(2), 3)
    store.close()
    store = LogStore(older)
    assert contents(store) == last
    store.close()
