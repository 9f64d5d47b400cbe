"""A manifest is what was written, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b

import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.manifest_bytes import FORMAT_VERSION, decode_manifest, encode_manifest
from tests.cli.checkpoints_for_tests import make_experiment, values_of, write_checkpoint
from tests.roles.manifests_for_tests import as_version_1, cuts, flips


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The manifest of a whole checkpoint."""
    experiment, folder = make_experiment(), tmp_path_factory.mktemp("000001")
    write_checkpoint(folder, experiment, values_of(experiment))
    return (folder / "manifest.json").read_bytes()


def found_in(contents: Iterator[bytes]) -> int:
    """Decodes every one; returns how many there were, all of them damaged."""
    count = 0
    for content in contents:
        with pytest.raises(DamagedDataError):
            decode_manifest(content)
        count += 1
    return count


def test_what_is_written_is_json_whose_last_field_sums_up_the_lines_before(sound: bytes) -> None:
    described = decode_manifest(sound)
    assert described == json.loads(sound) and described["format_version"] == FORMAT_VERSION
    *before, last, end = sound.splitlines(keepends=True)
    assert end == b"}\n" and before[0] == b"{\n" and before[1] == b' "format_version": 2,\n'
    assert last == b' "checksum": "%s"\n' % blake2b(b"".join(before), digest_size=16).hexdigest().encode()
    del described["checksum"]
    assert encode_manifest(described) == sound


def test_every_flipped_bit_is_found(sound: bytes) -> None:
    assert found_in(flips(sound)) == 8 * len(sound)


def test_a_file_that_is_cut_or_goes_on_is_found(sound: bytes) -> None:
    assert found_in(cuts(sound)) == len(sound)
    assert found_in(sound + bytes([more]) for more in range(256)) == 256


def test_one_that_is_changed_says_what_to_compare(sound: bytes) -> None:
    changed = sound.replace(b'"examples": 96', b'"examples": 97')
    assert changed != sound
    with pytest.raises(DamagedDataError, match=r"its checksum is wrong: expected it to end with .*; found .*checksum"):
        decode_manifest(changed)


def test_one_of_before_there_were_checksums_is_read(sound: bytes) -> None:
    old = as_version_1(sound)
    assert b'"written_at"' in old.splitlines()[-2]
    described = decode_manifest(sound) | {"format_version": 1}
    del described["checksum"], described["classes"]
    assert decode_manifest(old) == described


def test_nothing_of_a_later_version_passes_for_one_of_before(sound: bytes) -> None:
    """Even where the version itself is damaged, and any one bit besides."""
    disguised = sound.replace(b'"format_version": 2', b'"format_version": 1')
    with pytest.raises(DamagedDataError, match="expected only fields of format version 1; found checksum"):
        decode_manifest(disguised)
    assert found_in(flips(disguised)) == 8 * len(sound)


@pytest.mark.parametrize("version", [0, 3, None, "2", 1.5])
def test_other_versions_are_refused(sound: bytes, version: object) -> None:
    described = decode_manifest(sound) | {"format_version": version}
    del described["checksum"]
    with pytest.raises(DamagedDataError, match=r"expected format version 1 or 2; found .* a newer adamctl"):
        decode_manifest(encode_manifest(described))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff", b'{"job": "\xff"}', b"[" * 100_000])
def test_what_is_no_manifest_is_damage(content: bytes) -> None:
    with pytest.raises(DamagedDataError):
        decode_manifest(content)
