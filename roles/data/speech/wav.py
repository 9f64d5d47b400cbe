"""WAV files (RIFF, PCM of 8, 16, 24 or 32 bits) to float32 samples of one channel.

The layout is that of Microsoft's "Multiple Channel Audio Data and WAVE Files" (2007): `RIFF size WAVE`, then chunks of
four letters, a length in bytes and a body, which is padded to an even length. The standard library's `wave` does not
say where a file is damaged, takes a cut body for a short one, and refuses WAVE_FORMAT_EXTENSIBLE before Python 3.12.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import DamagedDataError

RATE_HZ_MAX: Final = 768_000
"""The highest rate that converters have. A damaged one must not decide how much memory a window takes."""
_PCM: Final = 1
_EXTENSIBLE: Final = 0xFFFE
_PCM_SUBFORMAT: Final = bytes.fromhex("0100000000001000800000aa00389b71")
_ENCODING_NAMES: Final = {2: "Microsoft ADPCM", 3: "IEEE float", 6: "A-law", 7: "mu-law", 17: "IMA ADPCM", 85: "MP3"}
_BITS: Final = (8, 16, 24, 32)
_HEADER_BYTES: Final = 12
_CHUNK_HEADER_BYTES: Final = 8
_FORMAT_BYTES: Final = 16
_CHUNKS_MAX: Final = 4096
_EXTENSIBLE_BYTES: Final = 40
_FORMAT_TAG, _CHANNELS, _RATE, _BLOCK, _SAMPLE_BITS, _SUBFORMAT = 0, 2, 4, 12, 14, 24  # bytes into the `fmt ` body


@dataclass(frozen=True)
class Sound:
    """Samples [n] of one channel in [-1, 1], float32, and how many of them make a second."""

    samples: NDArray[np.float32]
    rate_hz: int


@dataclass(frozen=True)
class WavHeader:
    """Where the samples of a file are and how they are stored.

    Attributes:
        rate_hz, channels, bits: how often, how many side by side, and how wide the samples are.
        start: the byte where they begin.
        samples: how many there are of each channel.
    """

    rate_hz: int
    channels: int
    bits: int
    start: int = 0
    samples: int = 0

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * self.bits // 8


ReadAt = Callable[[int, int], bytes]
"""Returns the bytes [start, stop) of a file, fewer at its end."""


def read_wav(content: bytes, name: str) -> Sound:
    """Returns the samples of a WAV file; several channels become their mean.

    Args:
        content: the whole file.
        name: what errors call it, such as its path.

    Raises:
        DamagedDataError: as `read_wav_header`.
    """
    header = read_wav_header(lambda start, stop: content[start:stop], len(content), name)
    size_bytes = header.samples * header.frame_bytes
    return Sound(wav_samples(content[header.start : header.start + size_bytes], header), header.rate_hz)


def read_wav_header(read: ReadAt, file_bytes: int, name: str) -> WavHeader:
    """Walks through the chunks of a WAV file up to its samples, which are not read.

    Args:
        read: gives a few bytes of the file.
        file_bytes: its length.
        name: what errors call it, such as its path.

    Raises:
        DamagedDataError: no WAV file, a broken header, a cut body, no samples, or an encoding other than PCM of 8, 16,
            24 or 32 bits. The message gives the name, the byte where it shows, what was expected and what was found.
    """
    first = read(0, _HEADER_BYTES)
    if first[:4] != b"RIFF":
        _refuse(name, 0, "'RIFF'", repr(first[:4]))
    if first[8:] != b"WAVE":
        _refuse(name, 8, "'WAVE'", repr(first[8:]))
    form: WavHeader | None = None
    at = _HEADER_BYTES
    for _ in range(_CHUNKS_MAX):
        body = at + _CHUNK_HEADER_BYTES
        chunk = read(at, body)
        if len(chunk) < _CHUNK_HEADER_BYTES:
            _refuse(name, at, f"a chunk {'fmt ' if form is None else 'data'!r}", "the end of the file")
        kind, length = struct.unpack("<4sI", chunk)
        if length > file_bytes - body:
            _refuse(
                name,
                at + 4,
                f"a chunk {kind.decode('latin-1')!r} of {length} bytes",
                f"{max(file_bytes - body, 0)} bytes to the end",
            )
        if kind == b"fmt ":
            form = _format(read(body, body + min(length, _EXTENSIBLE_BYTES)), body, length, name)
        elif kind == b"data":
            if form is None:
                _refuse(name, at, "a chunk 'fmt ' before 'data'", "none")
            if length == 0 or length % form.frame_bytes:
                _refuse(name, at + 4, f"a multiple of {form.frame_bytes} bytes of samples", str(length))
            return replace(form, start=body, samples=length // form.frame_bytes)
        at = body + length + length % 2
    _refuse(name, at, f"samples within {_CHUNKS_MAX} chunks", "more of them")


def _format(content: bytes, body: int, length: int, name: str) -> WavHeader:
    """Reads the `fmt ` chunk, `content` from byte `body` of the file.

    Raises:
        DamagedDataError: a field is impossible, or the encoding is not ours.
    """
    if length < _FORMAT_BYTES:
        _refuse(name, body - 4, f"a chunk 'fmt ' of at least {_FORMAT_BYTES} bytes", str(length))
    if len(content) < min(length, _EXTENSIBLE_BYTES):
        _refuse(name, body, f"{length} bytes of a chunk 'fmt '", f"{len(content)}, since the file became shorter")
    encoding, channels, rate_hz, _, block_bytes, bits = struct.unpack_from("<HHIIHH", content)
    if encoding == _EXTENSIBLE:
        if length < _EXTENSIBLE_BYTES:
            _refuse(name, body - 4, f"an extensible chunk 'fmt ' of at least {_EXTENSIBLE_BYTES} bytes", str(length))
        subformat = content[_SUBFORMAT:_EXTENSIBLE_BYTES]
        if subformat != _PCM_SUBFORMAT:
            _refuse(name, body + _SUBFORMAT, "the subformat of PCM", subformat.hex())
    elif encoding != _PCM:
        known = _ENCODING_NAMES.get(encoding)
        _refuse(name, body + _FORMAT_TAG, "encoding 1 (PCM)", f"{encoding}" + (f" ({known})" if known else ""))
    if channels == 0:
        _refuse(name, body + _CHANNELS, "at least one channel", "0")
    if not 0 < rate_hz <= RATE_HZ_MAX:
        _refuse(name, body + _RATE, f"1 to {RATE_HZ_MAX} samples a second", str(rate_hz))
    if bits not in _BITS:
        _refuse(name, body + _SAMPLE_BITS, "samples of 8, 16, 24 or 32 bits", str(bits))
    form = WavHeader(rate_hz, channels, bits)
    if block_bytes != form.frame_bytes:
        _refuse(
            name, body + _BLOCK, f"{form.frame_bytes} bytes for {channels} samples of {bits} bits", f"{block_bytes}"
        )
    return form


def wav_samples(content: bytes, header: WavHeader) -> NDArray[np.float32]:
    """Returns stored samples of every channel as [n] numbers in [-1, 1]; several channels become their mean.

    Integers are divided by half their range; 8 bits are unsigned, the others signed.
    """
    bits = header.bits
    count = len(content) // header.frame_bytes * header.channels
    if bits == 8:
        values = (np.frombuffer(content, np.uint8, count).astype(np.float32) - np.float32(128)) / np.float32(128)
    elif bits == 24:
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(content, np.uint8, 3 * count).reshape(count, 3)
        values = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    else:
        integers = np.frombuffer(content, f"<i{bits // 8}", count)
        values = integers.astype(np.float32) / np.float32(2 ** (bits - 1))
    if header.channels == 1:
        return values
    mean: NDArray[np.float32] = values.reshape(-1, header.channels).mean(axis=1, dtype=np.float32)
    return mean


def _refuse(name: str, position: int, expected: str, found: str) -> NoReturn:
    raise DamagedDataError(
        f"{name}: byte {position}: expected {expected}, found {found}; "
        "replace the file by a whole WAV file of PCM samples"
    )
