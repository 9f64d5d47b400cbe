"""Every damaged part of a checkpoint is named, and a whole one is found whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from adamctl.cli.checkpoint.damage import find_damage
from adamctl.errors import DamagedDataError
from adamctl.roles.coordinator.checkpoint.manifest import read_manifest
from adamctl.roles.ps.checkpoint_files import ShardFile
from tests.cli.checkpoints_for_tests import flip, make_experiment, values_of, write_checkpoint
from tests.roles.manifests_for_tests import as_version_1, change_manifest, cuts, flips


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    experiment = make_experiment()
    return write_checkpoint(tmp_path / "000001", experiment, values_of(experiment))


def test_a_whole_one_has_none(checkpoint: Path) -> None:
    assert find_damage(checkpoint) == []


def test_every_damaged_shard_is_named_not_only_the_first(checkpoint: Path) -> None:
    names = []
    for path in sorted(checkpoint.glob("*.adam")):
        for stored in (ShardFile(path).shards[0], ShardFile(path).shards[-1]):
            flip(path, stored.offset)
            names.append((path.name, stored.record.shard))
    damage = find_damage(checkpoint)
    assert len(damage) == len(names) == 4
    for line, (file, shard) in zip(damage, names, strict=True):
        assert file in line and f"shard {shard} " in line


def test_a_flipped_bit_in_every_37th_byte_of_a_servers_file_is_found(checkpoint: Path) -> None:
    path = checkpoint / "shards-ps-0.adam"
    for position in range(0, path.stat().st_size, 37):
        flip(path, position)
        assert find_damage(checkpoint), position
        flip(path, position)
    assert not find_damage(checkpoint)


@pytest.mark.parametrize("damaged", [flips, cuts])
def test_every_flipped_bit_and_every_cut_of_the_manifest_is_found(
    checkpoint: Path, damaged: Callable[[bytes], Iterable[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for content in damaged((checkpoint / "manifest.json").read_bytes()):
        monkeypatch.setattr(Path, "read_bytes", lambda path, content=content: content)
        (line,) = find_damage(checkpoint)
        assert "manifest.json" in line


@pytest.mark.parametrize(
    ("sound", "damaged"),
    [
        (b'"pass_examples"', b'"pasr_examples"'),
        (b'"seed": 7', b'"seed": "7"'),
        (b'"type": "conv2d"', b'"type": "conv2e"'),
    ],
)
def test_what_restore_cannot_read_is_damage_also_where_there_is_no_checksum(
    checkpoint: Path, sound: bytes, damaged: bytes
) -> None:
    path = checkpoint / "manifest.json"
    old = as_version_1(path.read_bytes())
    path.write_bytes(old)
    assert find_damage(checkpoint) == [] and sound in old
    path.write_bytes(old.replace(sound, damaged))
    with pytest.raises(DamagedDataError) as refused:
        read_manifest(checkpoint)
    assert find_damage(checkpoint) == [str(refused.value)]


def test_a_missing_file_and_a_shortened_one_are_both_named(checkpoint: Path) -> None:
    (checkpoint / "shards-ps-0.adam").unlink()
    other = checkpoint / "shards-ps-1.adam"
    other.write_bytes(other.read_bytes()[:-5])
    missing, short = find_damage(checkpoint)
    assert "shards-ps-0.adam: the file is missing" in missing
    assert "shards-ps-1.adam: expected" in short


def test_rows_that_no_file_holds_are_missing(checkpoint: Path) -> None:
    entries = json.loads((checkpoint / "manifest.json").read_text())["files"]
    change_manifest(checkpoint, {"files": entries[:1]})
    damage = find_damage(checkpoint)
    assert damage and all("are missing" in line for line in damage)


def test_what_is_no_manifest_is_said_so(checkpoint: Path) -> None:
    for value, words in (([], "non-empty"), ([{"name": "x"}], "`size_bytes`"), ("files", "Expected `array`")):
        change_manifest(checkpoint, {"files": value})
        (line,) = find_damage(checkpoint)
        assert words in line
    change_manifest(checkpoint, {"files": [{"name": "../x", "size_bytes": 1, "checksum": "", "shards": []}]})
    assert "in this folder" in find_damage(checkpoint)[0]
    (checkpoint / "manifest.json").unlink()
    assert "never finished" in find_damage(checkpoint)[0]


def test_files_of_another_layout_or_other_shards_are_refused(checkpoint: Path) -> None:
    change_manifest(checkpoint, {"layout_hash": "another"})
    assert all("another checkpoint" in line for line in find_damage(checkpoint))
    change_manifest(checkpoint, {"layout_hash": ShardFile(checkpoint / "shards-ps-0.adam").descriptor.layout_hash})
    entries = json.loads((checkpoint / "manifest.json").read_text())["files"]
    change_manifest(checkpoint, {"files": [entries[0] | {"shards": [99]}, entries[1]]})
    (line,) = find_damage(checkpoint)
    assert "lists shards [99]" in line
    change_manifest(checkpoint, {"files": [entries[0] | {"checksum": "0" * 32}, entries[1]]})
    (line,) = find_damage(checkpoint)
    assert "expected checksum 0000" in line
