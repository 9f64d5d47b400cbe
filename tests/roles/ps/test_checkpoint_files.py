"""Checkpoint files: everything comes back, however it is cut; any damage is found and named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from adamctl.errors import DamagedDataError
from adamctl.kernels.rules import make_rule
from adamctl.model.layout import cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.roles.manifest_bytes import FORMAT_VERSION, encode_manifest
from adamctl.roles.ps.checkpoint_encoder import CheckpointWriter
from adamctl.roles.ps.checkpoint_files import (
    CheckpointPlace,
    FileDescriptor,
    ShardImage,
    ShardRecord,
    file_name,
    load_parameters,
    read_checkpoint,
)
from adamctl.roles.ps.core.exactly_once import ClientRecord, MemoryRecord
from adamctl.roles.ps.initial_values import build_buckets
from tests.roles.manifests_for_tests import cuts, flips
from tests.roles.ps.ps_cluster import make_tensors

TENSORS = make_tensors()
LAYOUT = cut_layout(TENSORS, 2)


def values_of(tensor: int, row_start: int, row_stop: int, array: int = 0) -> np.ndarray:
    """What these tests store: every element tells where it belongs."""
    row_size = TENSORS[tensor].row_size
    numbers = np.arange(row_start * row_size, row_stop * row_size, dtype=np.float32)
    return numbers + 1000 * tensor + 0.25 * array


def write(folder: Path, servers: int = 2) -> dict:
    """Writes a checkpoint of alternating shards over servers, as a coordinator would finish it."""
    files = []
    for server in range(servers):
        descriptor = FileDescriptor("job", f"ps-{server}", LAYOUT.hash, "momentum", ("velocity",), TENSORS)
        writer = CheckpointWriter(folder, file_name(f"ps-{server}"), descriptor)
        for shard in LAYOUT.shards[server::servers]:
            memory = MemoryRecord((ClientRecord("w", 7, 3, {2: 36}),), (("old", 1),), 0)
            place = (shard.tensor, shard.row_start, shard.row_stop)
            record = ShardRecord(shard.index, *place, 1, 40 + shard.index, 50, memory)
            writer.add(ShardImage(record, values_of(*place), [values_of(*place, 1)]))
        files.append(writer.finish())
    for file in files:
        (folder / file.temporary_name).rename(folder / file.name)
    described = [
        {"name": f.name, "size_bytes": f.size_bytes, "checksum": f.checksum, "shards": list(f.shards)} for f in files
    ]
    manifest = {"files": described, "layout_hash": LAYOUT.hash, "tensors": [t.name for t in TENSORS]}
    write_manifest(folder, manifest)
    return manifest


def write_manifest(folder: Path, manifest: dict) -> None:
    (folder / "manifest.json").write_bytes(encode_manifest({"format_version": FORMAT_VERSION} | manifest))


def test_all_tensors_come_back_in_their_shapes(tmp_path: Path) -> None:
    write(tmp_path)
    parameters = load_parameters(tmp_path)
    assert list(parameters) == [tensor.name for tensor in TENSORS]
    for index, tensor in enumerate(TENSORS):
        expected = values_of(index, 0, tensor.shape[0]).reshape(tensor.shape)
        np.testing.assert_array_equal(parameters[tensor.name], expected)


def test_any_rows_can_be_read_however_the_files_were_cut(tmp_path: Path) -> None:
    write(tmp_path)
    checkpoint = read_checkpoint(tmp_path, verify=True)
    for tensor, described in enumerate(TENSORS):
        for start in range(described.shape[0]):
            for stop in range(start + 1, described.shape[0] + 1):
                (values, velocity), _ = checkpoint.rows(tensor, start, stop)
                np.testing.assert_array_equal(values, values_of(tensor, start, stop))
                np.testing.assert_array_equal(velocity, values_of(tensor, start, stop, 1))


def test_a_shard_cut_as_before_comes_back_with_its_version_and_memory(tmp_path: Path) -> None:
    write(tmp_path)
    shard = LAYOUT.shards[3]
    _, record = read_checkpoint(tmp_path).rows(shard.tensor, shard.row_start, shard.row_stop)
    assert record is not None
    assert (record.counter, record.pushes, record.memory.clients[0].refused) == (43, 50, {2: 36})
    wider = next(s for s in LAYOUT.shards if s.tensor == shard.tensor)
    assert read_checkpoint(tmp_path).rows(shard.tensor, wider.row_start, wider.row_stop + 1)[1] is None


def test_a_restored_job_keeps_nobody_out_and_knows_the_numbers_of_those_who_come_back(tmp_path: Path) -> None:
    """Its cluster may be a fresh one, whose incarnations begin again: `old`, 1 is somebody else there."""
    write(tmp_path)
    rule = make_rule(RuleConfig("momentum"))
    contents = build_buckets(LAYOUT, range(len(LAYOUT.buckets)), rule, 7, str(tmp_path))
    for content in (content for bucket in contents.values() for content in bucket):
        assert content.counter == 40 + content.index and content.memory is not None
        newcomers = [content.memory.find(("old", 1)), content.memory.find(("new", 0)), content.memory.find(("new", 1))]
        assert all(client is not None and client.done == 0 for client in newcomers)
        assert content.memory.sequence(("w", 7)) == 3


@pytest.mark.parametrize("servers", [1, 3])
def test_of_a_warm_start_the_state_begins_afresh_though_the_rule_is_the_same(tmp_path: Path, servers: int) -> None:
    write(tmp_path)
    rule, layout = make_rule(RuleConfig("momentum")), cut_layout(TENSORS, servers)
    start = layout, range(len(layout.buckets)), rule, 7, str(tmp_path)
    resumed, warm = build_buckets(*start), build_buckets(*start, parameters_only=True)
    for bucket, contents in warm.items():
        for content, other in zip(contents, resumed[bucket], strict=True):
            np.testing.assert_array_equal(content.values, other.values)
            assert other.state[0].any() and not content.state[0].any()


def test_what_adam_keeps_once_per_shard_comes_back_however_it_is_cut(tmp_path: Path) -> None:
    """Each shard gets its own count back, or the smallest of those it is joined from."""
    rule, descriptor = make_rule(RuleConfig("adam")), ("mean", "squares", "steps")
    writer = CheckpointWriter(tmp_path, "one", FileDescriptor("job", "ps", LAYOUT.hash, "adam", descriptor, TENSORS))
    for shard in LAYOUT.shards:
        state = rule.initial_state(shard.size)
        ones = np.ones(shard.size, np.float32)
        rule.apply_many(ones, ones, state, [ones.copy()] * (10 + shard.index), [0.1] * (10 + shard.index))
        place = (shard.index, shard.tensor, shard.row_start, shard.row_stop)
        writer.add(ShardImage(ShardRecord(*place, 1, 1, 1, MemoryRecord((), (), 0)), ones, state))
    file = writer.finish()
    (tmp_path / file.temporary_name).rename(tmp_path / file.name)
    described = {"name": file.name, "size_bytes": file.size_bytes, "checksum": file.checksum}
    write_manifest(tmp_path, {"files": [described]})
    other = cut_layout(TENSORS, 1)
    assert other.hash != LAYOUT.hash
    for layout in (LAYOUT, other):
        contents = build_buckets(layout, range(len(layout.buckets)), rule, 7, str(tmp_path))
        for content in (content for bucket in contents.values() for content in bucket):
            shard = layout.shards[content.index]
            parts = [s for s in LAYOUT.shards if s.tensor == shard.tensor and s.row_stop > shard.row_start]
            smallest = min(s.index for s in parts if s.row_start < shard.row_stop)
            assert content.state[2].strides == (0,) and set(content.state[2].tolist()) == {10.0 + smallest}
            assert (content.state[0] > 0).all() and content.state[0].strides == (4,)


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    manifest = write(tmp_path, servers=1)
    path = tmp_path / manifest["files"][0]["name"]
    sound = path.read_bytes()
    chance = random.Random(1)
    for position in range(len(sound)):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(DamagedDataError, match=path.name):
            read_checkpoint(tmp_path, verify=True)
    path.write_bytes(sound)
    read_checkpoint(tmp_path, verify=True)


@pytest.mark.parametrize("damaged", [flips, cuts])
def test_every_flipped_bit_and_every_cut_of_the_manifest_is_found(
    tmp_path: Path, damaged: Callable[[bytes], Iterable[bytes]]
) -> None:
    write(tmp_path)
    read_checkpoint(tmp_path)
    for content in damaged((tmp_path / "manifest.json").read_bytes()):
        place = CheckpointPlace(tmp_path, lambda name, content=content: BytesIO(content))
        with pytest.raises(DamagedDataError, match=r"manifest\.json"):
            read_checkpoint(place)


def test_reading_without_verification_finds_damage_in_what_it_reads_and_names_the_shard(tmp_path: Path) -> None:
    manifest = write(tmp_path, servers=1)
    path = tmp_path / manifest["files"][0]["name"]
    sound = path.read_bytes()
    marked = values_of(0, 0, 1).tobytes()
    path.write_bytes(sound.replace(marked, marked[:-1] + b"\x7f"))
    with pytest.raises(DamagedDataError, match="shard 0"):
        load_parameters(tmp_path)


def test_every_truncation_is_found(tmp_path: Path) -> None:
    manifest = write(tmp_path, servers=1)
    path = tmp_path / manifest["files"][0]["name"]
    sound = path.read_bytes()
    del manifest["files"][0]["size_bytes"]
    for length in range(0, len(sound), 7):
        path.write_bytes(sound[:length])
        manifest["files"][0]["size_bytes"] = length  # even if the manifest did not know better
        with pytest.raises(DamagedDataError, match=path.name):
            read_checkpoint(tmp_path, manifest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder, m: (folder / m["files"][1]["name"]).unlink(), "missing"),
        (lambda folder, m: (folder / "manifest.json").unlink(), "never finished"),
        (lambda folder, m: (folder / "manifest.json").write_text("{"), "manifest.json"),
        (lambda folder, m: (folder / "manifest.json").write_text("[]"), "expected a JSON object"),
        (lambda folder, m: write_manifest(folder, {"files": []}), "not empty"),
        (lambda folder, m: write_manifest(folder, {"files": [{"name": "x"}]}), "size_bytes"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, change, message: str) -> None:
    change(tmp_path, write(tmp_path))
    with pytest.raises(DamagedDataError, match=message):
        read_checkpoint(tmp_path)


def test_a_manifest_cannot_point_out_of_its_folder(tmp_path: Path) -> None:
    manifest = write(tmp_path)
    manifest["files"][0]["name"] = "../outside"
    with pytest.raises(DamagedDataError, match="in this folder"):
        read_checkpoint(tmp_path, manifest)


def test_missing_rows_are_missed(tmp_path: Path) -> None:
    manifest = write(tmp_path)
    del manifest["files"][1]
    checkpoint = read_checkpoint(tmp_path, manifest)
    with pytest.raises(DamagedDataError, match=r"t0 are missing"):
        checkpoint.rows(0, 0, 12)


def test_an_abandoned_file_is_removed(tmp_path: Path) -> None:
    descriptor = FileDescriptor("job", "ps-0", LAYOUT.hash, "sgd", (), TENSORS)
    CheckpointWriter(tmp_path, file_name("ps-0"), descriptor).abandon()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("node", ["ps-0", "ps/../0", "ps:7", "é"])
def test_node_names_make_file_names(node: str) -> None:
    name = file_name(node)
    assert Path(name).name == name and name.isascii()
    assert file_name(node + "x") != name
