"""FLAC files: the header by ourselves, the samples by the `audio` extra (soundfile).

The header is that of RFC 9639, section 8: `fLaC`, then the block STREAMINFO with the rate (20 bits), the channels less
1 (3), the bits of a sample less 1 (5) and the samples of a channel (36).
"""

from __future__ import annotations

import io
from typing import Final, NamedTuple

import numpy as np

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.speech.wav import Sound

HEADER_BYTES: Final = 42
_STREAMINFO_BYTES: Final = 34
_STREAMINFO: Final = 0
_TYPE_MASK: Final = 0x7F
_NUMBERS_AT: Final = 18
SAMPLES_PER_BYTE_MAX: Final = 65535 / 11
"""Of silence: the longest block (RFC 9639, 9.1.1) in the shortest frame, one constant."""
_PART_SAMPLES: Final = 1 << 16


class FlacHeader(NamedTuple):
    """What the header says: samples a second, and samples of each channel."""

    rate_hz: int
    samples: int


def read_flac_header(content: bytes, size_bytes: int, name: str) -> FlacHeader:
    """Reads the first HEADER_BYTES of a file of `size_bytes`.

    Raises:
        DamagedDataError: it is no FLAC file, or does not say how long it is, or says more than it can hold. The message
            gives the name and the byte.
    """
    if content[:4] != b"fLaC":
        raise DamagedDataError(f"{name}: byte 0: expected 'fLaC', found {content[:4]!r}")
    block = content[4:8]
    if len(content) < HEADER_BYTES or block[0] & _TYPE_MASK != _STREAMINFO or block[1:] != b"\0\0\x22":
        raise DamagedDataError(
            f"{name}: byte 4: expected the block STREAMINFO of {_STREAMINFO_BYTES} bytes, found {block.hex(' ')}"
        )
    numbers = int.from_bytes(content[_NUMBERS_AT : _NUMBERS_AT + 8], "big")
    header = FlacHeader(numbers >> 44, numbers & (2**36 - 1))
    if not header.rate_hz:
        raise DamagedDataError(f"{name}: byte {_NUMBERS_AT}: expected at least 1 sample a second, found 0")
    if not header.samples:
        raise DamagedDataError(
            f"{name}: byte {_NUMBERS_AT + 3}: expected how many samples there are, found 0; write the file again"
        )
    if header.samples > SAMPLES_PER_BYTE_MAX * size_bytes:
        raise DamagedDataError(
            f"{name}: byte {_NUMBERS_AT + 3}: expected at most as many samples as {size_bytes} bytes can hold, "
            f"found {header.samples}"
        )
    return header


def read_flac(content: bytes, name: str) -> Sound:
    """Returns the samples of a whole FLAC file; several channels become their mean.

    Raises:
        ConfigurationError: soundfile is not installed.
        DamagedDataError: the file cannot be decoded.
    """
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: the package is there without its library
        raise ConfigurationError(
            f"{name}: FLAC files are decoded with soundfile, which is not installed here: pip install 'adamctl[audio]'"
        ) from error
    parts = []
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            # Part by part: a damaged header may announce 2^36 samples, and a whole read would take memory for them.
            while len(part := file.read(_PART_SAMPLES, dtype="float32", always_2d=True)):
                parts.append(part.mean(axis=1, dtype=np.float32))
            rate_hz, announced = int(file.samplerate), int(file.frames)
    except (soundfile.SoundFileError, RuntimeError, TypeError, ValueError) as error:
        raise DamagedDataError(f"{name}: expected a whole FLAC file, found: {error}") from error
    samples = np.concatenate(parts) if parts else np.empty(0, np.float32)
    if len(samples) != announced:
        raise DamagedDataError(f"{name}: expected {announced} samples, as its header says, found {len(samples)}")
    return Sound(samples, rate_hz)
