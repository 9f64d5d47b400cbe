"""Recordings are listed and read in parts, from a folder and from a tar alike; damage is named with file and byte."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.data import DataConfig
from adamctl.errors import ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.speech.recordings import (
    list_places,
    open_recordings,
    read_samples,
    read_text,
    tar_members,
)
from tests.roles.data.speech.sounds import noise, tar_of, wav_bytes, write_recordings

CONFIG = DataConfig(format="audio", source="x", class_from="name")
LENGTHS = {"r/1_a.wav": 300, "r/0_a.wav": 77, "2_b.wav": 1}


def test_a_folder_and_a_tar_of_it_give_the_same(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path / "in", LENGTHS)
    (folder / "README.md").write_text("about")
    for source in (folder, tar_of(folder, tmp_path / "in.tar")):
        places = list_places(source, CONFIG)
        assert sorted(places) == ["2_b.wav", "r/0_a.wav", "r/1_a.wav"]
        recordings = open_recordings(places, list(LENGTHS), str(source))
        assert [(one.name, one.samples, one.rate_hz) for one in recordings] == [(*one, 8000) for one in LENGTHS.items()]
        for seed, recording in enumerate(recordings):
            whole = noise(recording.samples, seed)
            assert read_samples(recording, 0, recording.samples, "x").tolist() == whole.tolist()
            part = min(20, recording.samples), min(50, recording.samples)
            assert read_samples(recording, *part, "x").tolist() == whole[slice(*part)].tolist()


def test_other_rates_are_refused_with_both_files(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path / "in", {"1_a.wav": 100})
    (folder / "1_b.wav").write_bytes(wav_bytes(noise(100, 0), rate_hz=16000))
    with pytest.raises(
        ConfigurationError, match=r"in/1_b.wav: byte 24: expected 8000 samples a second, as 1_a.wav has, found 16000"
    ):
        open_recordings(list_places(folder, CONFIG), ["1_a.wav", "1_b.wav"], str(folder))


def test_a_broken_header_is_named_with_the_tar_and_the_member(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path / "in", LENGTHS)
    path = tar_of(folder, tmp_path / "in.tar")
    content = bytearray(path.read_bytes())
    start = tar_members(path)["r/0_a.wav"].start
    content[start + 8 : start + 12] = b"AVI "
    path.write_bytes(content)
    with pytest.raises(DamagedDataError, match=r"in\.tar/r/0_a\.wav: byte 8: expected 'WAVE', found b'AVI '"):
        open_recordings(list_places(path, CONFIG), list(LENGTHS), str(path))


@pytest.mark.parametrize("change", ["shorter", "rewritten"])
def test_a_file_that_changes_is_named(tmp_path: Path, change: str) -> None:
    folder = write_recordings(tmp_path / "in", LENGTHS)
    os.utime(folder / "r/1_a.wav", ns=(1, 1))
    (recording,) = open_recordings(list_places(folder, CONFIG), ["r/1_a.wav"], str(folder))
    content = (folder / "r/1_a.wav").read_bytes()
    (folder / "r/1_a.wav").write_bytes(content[:100] if change == "shorter" else content[:-1] + b"x")
    with pytest.raises(ChangedDataError, match=r"in/r/1_a\.wav: expected the file that was opened, found one changed"):
        read_samples(recording, 0, 300, str(folder))
    (folder / "r/1_a.wav").unlink()
    with pytest.raises(ChangedDataError, match=r"in/r/1_a\.wav: cannot be read: .*No such file"):
        read_samples(recording, 0, 300, str(folder))


def test_what_is_no_tar_or_has_no_recordings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.tar"
    path.write_bytes(b"no tar at all" * 100)
    with pytest.raises(DamagedDataError, match=r"in\.tar: byte 0: expected the header of a tar member"):
        list_places(path, CONFIG)
    with tarfile.open(tmp_path / "in.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("x"), io.BytesIO())
    with pytest.raises(ConfigurationError, match="gunzip it"):
        list_places(tmp_path / "in.tar.gz", CONFIG)
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("x.txt"), io.BytesIO())
    with pytest.raises(ConfigurationError, match="expected WAV or FLAC files, found none"):
        list_places(path, CONFIG)


def test_a_thousand_damaged_tars_raise_nothing_else(tmp_path: Path) -> None:
    path = tar_of(write_recordings(tmp_path / "in", LENGTHS), tmp_path / "in.tar")
    whole, random = path.read_bytes(), np.random.default_rng(21)
    read = refused = 0
    for number in range(1000):
        content = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            content[random.integers(0, len(content))] = random.integers(256)
        if number % 3 == 0:
            del content[random.integers(0, len(content)) :]
        path.write_bytes(content)
        try:
            places = list_places(path, CONFIG)
            for recording in open_recordings(places, list(places), "x"):
                read_samples(recording, 0, recording.samples, "x")
            read += 1
        except (ConfigurationError, DamagedDataError):
            refused += 1
    assert read > 100
    assert refused > 300


def test_a_text_lies_in_the_folder_in_the_tar_or_beside_it(tmp_path: Path) -> None:
    folder = write_recordings(tmp_path / "in", LENGTHS)
    (folder / "a.txt").write_text("in it")
    path = tar_of(folder, tmp_path / "in.tar")
    (tmp_path / "b.txt").write_text("beside")
    (tmp_path / "c.txt").write_bytes(b"ab\xff")
    assert read_text(folder, "a.txt") == read_text(path, "a.txt") == "in it"
    assert read_text(path, "b.txt") == "beside"
    with pytest.raises(ConfigurationError, match=r"data\.alignment: expected the file b\.txt in .*in, found none"):
        read_text(folder, "b.txt")
    for name in ("../b.txt", "/etc/passwd", ".."):
        with pytest.raises(ConfigurationError, match="expected the name of a file, without folders"):
            read_text(folder, name)
    with pytest.raises(DamagedDataError, match=r"c\.txt: byte 2: expected text in UTF-8"):
        read_text(path, "c.txt")
