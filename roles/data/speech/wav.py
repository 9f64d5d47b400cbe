"""WAV files (RIFF, PCM of 8, 16, 24 or 32 bits) to float32 samples of one channel.

The layout is that of Microsoft's "Multiple Channel Audio Data and WAVE Files" (2007): `RIFF size WAVE`, then chunks of
four letters, a length in bytes and a body, which is padded to an even length. The standard library's `wave` does not
say where a file is damaged, takes a cut body for a short one, and refuses WAVE_FORMAT_EXTENSIBLE before Python 3.12.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
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
_EXTENSIBLE_BYTES: Final = 40
_FORMAT_TAG, _CHANNELS, _RATE, _BLOCK, _SAMPLE_BITS, _SUBFORMAT = 0, 2, 4, 12, 14, 24  # bytes into the `fmt ` body


@dataclass(frozen=True)
class Sound:
    """Samples [n] of one channel in [-1, 1], float32, and how many of them make a second."""

    samples: NDArray[np.float32]
    rate_hz: int


@dataclass(frozen=True)
class _Format:
    channels: int
    rate_hz: int
    bits: int

    @property
    def frame_bytes(self) -> int:
        """Bytes of one sample of every channel."""
        return self.channels * self.bits // 8


def read_wav(content: bytes, name: str) -> Sound:
    """Returns the samples of a WAV file; several channels become their mean.

    Args:
        content: the whole file.
        name: what errors call it, such as its path.

    Raises:
        DamagedDataError: no WAV file, a broken header, a cut body, no samples, or an encoding other than PCM of 8, 16,
            24 or 32 bits. The message gives the name, the byte where it shows, what was expected and what was found.
    """
    if content[:4] != b"RIFF":
        _refuse(name, 0, "'RIFF'", repr(content[:4]))
    if content[8:_HEADER_BYTES] != b"WAVE":
        _refuse(name, 8, "'WAVE'", repr(content[8:_HEADER_BYTES]))
    form: _Format | None = None
    at = _HEADER_BYTES
    while True:
        if at + _CHUNK_HEADER_BYTES > len(content):
            _refuse(name, at, f"a chunk {'fmt ' if form is None else 'data'!r}", "the end of the file")
        kind, length = struct.unpack_from("<4sI", content, at)
        body = at + _CHUNK_HEADER_BYTES
        if length > len(content) - body:
            _refuse(
                name,
                at + 4,
                f"a chunk {kind.decode('latin-1')!r} of {length} bytes",
                f"{len(content) - body} bytes to the end",
            )
        if kind == b"fmt ":
            form = _format(content, body, length, name)
        elif kind == b"data":
            if form is None:
                _refuse(name, at, "a chunk 'fmt ' before 'data'", "none")
            if length == 0 or length % form.frame_bytes:
                _refuse(name, at + 4, f"a multiple of {form.frame_bytes} bytes of samples", str(length))
            return Sound(_mono(content, body, length, form), form.rate_hz)
        at = body + length + length % 2


def _format(content: bytes, body: int, length: int, name: str) -> _Format:
    """Raises DamagedDataError: a field of the `fmt ` chunk is impossible, or its encoding is not ours."""
    if length < _FORMAT_BYTES:
        _refuse(name, body - 4, f"a chunk 'fmt ' of at least {_FORMAT_BYTES} bytes", str(length))
    encoding, channels, rate_hz, _, block_bytes, bits = struct.unpack_from("<HHIIHH", content, body)
    if encoding == _EXTENSIBLE:
        if length < _EXTENSIBLE_BYTES:
            _refuse(name, body - 4, f"an extensible chunk 'fmt ' of at least {_EXTENSIBLE_BYTES} bytes", str(length))
        subformat = content[body + _SUBFORMAT : body + _EXTENSIBLE_BYTES]
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
    form = _Format(channels, rate_hz, bits)
    if block_bytes != form.frame_bytes:
        _refuse(
            name, body + _BLOCK, f"{form.frame_bytes} bytes for {channels} samples of {bits} bits", f"{block_bytes}"
        )
    return form


def _mono(content: bytes, body: int, length: int, form: _Format) -> NDArray[np.float32]:
    """Returns [n] samples: integers over half their range; 8 bits are unsigned, the others signed."""
    count = length // (form.bits // 8)
    if form.bits == 8:
        values = (np.frombuffer(content, np.uint8, count, body).astype(np.float32) - np.float32(128)) / np.float32(128)
    elif form.bits == 24:
        wide = np.zeros((count, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(content, np.uint8, length, body).reshape(count, 3)
        values = wide.view("<i4")[:, 0].astype(np.float32) / np.float32(2**31)
    else:
        integers = np.frombuffer(content, f"<i{form.bits // 8}", count, body)
        values = integers.astype(np.float32) / np.float32(2 ** (form.bits - 1))
    if form.channels == 1:
        return values
    mean: NDArray[np.float32] = values.reshape(-1, form.channels).mean(axis=1, dtype=np.float32)
    return mean


def _refuse(name: str, position: int, expected: str, found: str) -> NoReturn:
    raise DamagedDataError(
        f"{name}: byte {position}: expected {expected}, found {found}; "
        "replace the file by a whole WAV file of PCM samples"
    )
