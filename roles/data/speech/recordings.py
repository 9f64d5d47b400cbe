"""Recordings in a folder or in a tar of it: listed once, then read in any part by any thread."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ChangedDataError, ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.late_file import ANOTHER, changed
from adamctl.roles.data.readers.splits import files_below, is_hidden
from adamctl.roles.data.readers.tar_headers import members
from adamctl.roles.data.speech.flac import HEADER_BYTES, read_flac, read_flac_header
from adamctl.roles.data.speech.wav import Sound, WavHeader, read_wav_header, wav_samples

ENDINGS: Final = (".wav", ".flac")
KIND: Final = "WAV or FLAC files"
LOST: Final = "(behind the damage)"
"""The name of what stands for the recordings of a tar that nobody can list."""

Samples = NDArray[np.float32]


class Place(NamedTuple):
    """Where the bytes of a file are: from `start` on in the file at `path`, which was `opened` when it was listed."""

    path: Path
    start: int
    size_bytes: int
    opened: tuple[int, int]
    """Size in bytes and time of change in nanoseconds of the file at `path`."""


def place_of(path: Path) -> Place:
    """Returns the place of a file that is one recording, or one text. Raises OSError."""
    found = path.stat()
    return Place(path, 0, found.st_size, (found.st_size, found.st_mtime_ns))


class Recording(NamedTuple):
    """One recording: its name below the source, its place, and what its header says."""

    name: str
    place: Place
    rate_hz: int
    samples: int
    wav: WavHeader | None
    """None: it is FLAC."""
    damage: str = ""
    """What is wrong with its header; then it counts as a recording of one sample, which cannot be read."""


def lost_recording(tar: Path, damage: str, rate_hz: int) -> Recording:
    """Returns what stands for a link in a tar, or all that is behind a damaged header: one that cannot be read."""
    return Recording(LOST, place_of(tar), rate_hz, 1, None, damage)


def list_places(source: Path, config: DataConfig) -> dict[str, Place]:
    """Returns the WAV and FLAC files of a folder or a tar by their names below it. None of them is opened.

    Raises:
        ConfigurationError: there are none, or the tar is compressed.
        DamagedDataError: the tar is damaged, or it is none.
    """
    if source.is_dir():
        names = files_below(source, ENDINGS, config, KIND)
        return {name: place_of(source / name) for name in names}
    places, damages = places_before_damage(source, config)
    if damages:
        raise DamagedDataError(damages[0])
    return places


def places_before_damage(source: Path, config: DataConfig) -> tuple[dict[str, Place], list[str]]:
    """Returns like `list_places`, of a tar those up to a damaged header but links, and all that is wrong.

    Raises:
        ConfigurationError: like `list_places`.
        DamagedDataError: there is none before the damage.
    """
    if source.is_dir():
        return list_places(source, config), []
    found, damages = _members(source)
    places = {name: place for name, place in found.items() if name.lower().endswith(ENDINGS) and not is_hidden(name)}
    if not places and damages:
        raise DamagedDataError(damages[0])
    if not places:
        raise ConfigurationError(f"{source}: expected {KIND}, found none")
    return places, damages


def tar_members(path: Path) -> dict[str, Place]:
    """Returns the files of an uncompressed tar by name, in their order.

    Raises:
        ConfigurationError: it is compressed.
        DamagedDataError: a header is damaged, a member is a link, or the file ends too early; the byte is given.
    """
    places, damages = _members(path)
    if damages:
        raise DamagedDataError(damages[0])
    return places


def _members(path: Path) -> tuple[dict[str, Place], list[str]]:
    """Returns the files of a tar up to a damaged header, and all that is wrong. Raises ConfigurationError."""
    places: dict[str, Place] = {}
    links: list[tuple[str, str]] = []
    damages: list[str] = []
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        opened = found.st_size, found.st_mtime_ns
        try:
            for member in members(file.fileno(), path, links):
                places[member.name] = Place(path, member.offset, member.size_bytes, opened)
        except DamagedDataError as error:
            damages.append(str(error))
    return places, [*(said for _, said in links), *damages]


def read_text(source: Path, name: str) -> str:
    """Returns a text file in UTF-8 that lies in a source: in the folder or the tar, or beside the tar.

    Raises:
        ConfigurationError: it is nowhere there, or its name leads elsewhere.
        DamagedDataError: it is not UTF-8.
    """
    check_file_name(name)
    if source.is_dir():
        path = source / name
        place = place_of(path) if path.is_file() else None
    else:
        beside = source.parent / name
        place = _members(source)[0].get(name)
        if place is None and beside.is_file():
            place = place_of(beside)
    if place is None:
        raise ConfigurationError(f"data.alignment: expected the file {name} in {source}, found none")
    try:
        return _read(place, 0, place.size_bytes, name).decode()
    except UnicodeDecodeError as error:
        raise DamagedDataError(f"{source}/{name}: byte {error.start}: expected text in UTF-8") from error


def check_file_name(name: str) -> None:
    """Raises ConfigurationError if the name of an alignment leads to another folder."""
    if "/" in name or name in (".", ".."):
        raise ConfigurationError(f"data.alignment: expected the name of a file, without folders, found {name}")


def open_recordings(
    places: dict[str, Place], names: Sequence[str], origin: str, *, skip: bool = False
) -> list[Recording]:  # fmt: skip
    """Reads the headers of recordings.

    Args:
        skip: take those whose header is damaged for recordings of one sample, which `read_samples` refuses.

    Raises:
        ConfigurationError: they do not all have the rate of the first.
        DamagedDataError: a header is damaged, or, with `skip`, all are; the message gives the file and the byte.
    """
    recordings = [_header_or_damage(name, places[name], origin, skip=skip) for name in names]
    whole = [recording for recording in recordings if not recording.damage]
    if not whole:
        raise DamagedDataError(recordings[0].damage)
    for recording in whole:
        if recording.rate_hz != whole[0].rate_hz:
            where = "byte 24: " if recording.wav is not None else ""
            raise ConfigurationError(
                f"{_shown(recording.name, origin)}: {where}expected {whole[0].rate_hz} samples a second, as "
                f"{whole[0].name} has, found {recording.rate_hz}; resample it, or leave it out"
            )
    return [recording._replace(rate_hz=whole[0].rate_hz) for recording in recordings]


def _header_or_damage(name: str, place: Place, origin: str, *, skip: bool) -> Recording:
    try:
        return read_header(name, place, origin)
    except DamagedDataError as error:
        if not skip or isinstance(error, ChangedDataError):
            raise
        return Recording(name, place, 0, 1, None, str(error))


def read_header(name: str, place: Place, origin: str) -> Recording:
    """Returns what the header of a recording says. Raises DamagedDataError."""
    shown = _shown(name, origin)
    if name.lower().endswith(".flac"):
        first = _read(place, 0, min(HEADER_BYTES, place.size_bytes), shown)
        header = read_flac_header(first, place.size_bytes, shown)
        return Recording(name, place, header.rate_hz, header.samples, None)
    with open(place.path, "rb") as file:
        descriptor = file.fileno()

        def read_at(start: int, stop: int) -> bytes:
            wanted = min(stop, place.size_bytes) - start
            return os.pread(descriptor, wanted, place.start + start) if wanted > 0 else b""

        wav = read_wav_header(read_at, place.size_bytes, shown)
    return Recording(name, place, wav.rate_hz, wav.samples, wav)


def read_samples(recording: Recording, start: int, stop: int, origin: str) -> Samples:
    """Returns samples [start, stop) of a recording as numbers in [-1, 1]; several channels become their mean.

    Of a WAV file no more is read than that.

    Raises:
        DamagedDataError: it cannot be decoded.
        ChangedDataError: the file has changed since it was listed, or cannot be read.
        ConfigurationError: it is FLAC, and the `audio` extra is not installed.
    """
    if recording.damage:
        raise DamagedDataError(recording.damage)
    shown = _shown(recording.name, origin)
    wav = recording.wav
    if wav is None:
        sound: Sound = read_flac(_read(recording.place, 0, recording.place.size_bytes, shown), shown)
        if len(sound.samples) != recording.samples:
            raise DamagedDataError(
                f"{shown}: expected {recording.samples} samples, as its header says, found {len(sound.samples)}"
            )
        return sound.samples[start:stop]
    first, last = wav.start + start * wav.frame_bytes, wav.start + stop * wav.frame_bytes
    return wav_samples(_read(recording.place, first, last, shown), wav)


def _read(place: Place, start: int, stop: int, shown: str) -> bytes:
    """Returns bytes [start, stop) of a file.

    Raises:
        ChangedDataError: it has changed since it was listed, or cannot be read.
        DamagedDataError: there are fewer.
    """
    try:
        descriptor = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if (found.st_size, found.st_mtime_ns) != place.opened:
                raise changed(shown, ANOTHER)
            content = os.pread(descriptor, stop - start, place.start + start)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ChangedDataError(f"{shown}: cannot be read: {error}") from error
    if len(content) < stop - start:
        raise DamagedDataError(
            f"{shown}: byte {start + len(content)}: expected bytes up to {stop}, found the end of the file"
        )
    return content


def _shown(name: str, origin: str) -> str:
    return f"{origin}/{name}"
