"""WAV files: what `wave` wrote is read, and every damage is named with file and byte."""

from __future__ import annotations

import io
import struct
import wave

import numpy as np
import pytest

from adamctl.errors import DamagedDataError
from adamctl.roles.data.speech.wav import read_wav

PCM = bytes.fromhex("0100000000001000800000aa00389b71")


def written(body: bytes, bits: int = 16, channels: int = 1, rate_hz: int = 8000) -> bytes:
    """A file as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(bits // 8)
        out.setframerate(rate_hz)
        out.writeframes(body)
    return file.getvalue()


def little_endian(values: list[int], bits: int) -> bytes:
    return b"".join(value.to_bytes(bits // 8, "little", signed=bits > 8) for value in values)


@pytest.mark.parametrize(
    ("bits", "stored", "expected"),
    [
        (8, [0, 64, 128, 255], [-1, -0.5, 0, 127 / 128]),
        (16, [-(2**15), 0, 1, 2**15 - 1], [-1, 0, 2**-15, 1 - 2**-15]),
        (24, [-(2**23), -1, 1, 2**23 - 1], [-1, -(2**-23), 2**-23, 1 - 2**-23]),
        (32, [-(2**31), -(2**10), 2**30, 2**8], [-1, -(2**-21), 0.5, 2**-23]),
    ],
)
def test_samples_of_every_width_are_over_half_their_range(bits: int, stored: list[int], expected: list[float]) -> None:
    sound = read_wav(written(little_endian(stored, bits), bits, rate_hz=16000), "a.wav")
    assert sound.rate_hz == 16000
    assert sound.samples.dtype == np.float32
    assert sound.samples.tolist() == expected


def test_several_channels_become_their_mean() -> None:
    stored = [16384, 0, -8192, -8192, 0, -32768]
    assert read_wav(written(little_endian(stored, 16), channels=2), "a.wav").samples.tolist() == [0.25, -0.25, -0.5]
    assert read_wav(written(little_endian(stored, 16), channels=3), "a.wav").samples.tolist() == [
        np.float32(8192 / 32768 / 3),
        np.float32(-40960 / 32768 / 3),
    ]


def test_other_chunks_are_passed_over_with_their_padding_and_what_follows_the_samples_is_not_read() -> None:
    content = written(little_endian([7, 8], 16))
    odd = b"LIST" + struct.pack("<I", 3) + b"abc\0"
    assert read_wav(content[:12] + odd + content[12:] + b"ju", "a.wav").samples.tolist() == [7 / 32768, 8 / 32768]


def extensible(subformat: bytes) -> bytes:
    """A file as other programs write 24 bits: the encoding stands in the subformat."""
    head = struct.pack("<HHIIHHHHI", 0xFFFE, 1, 8000, 24000, 3, 24, 22, 24, 4) + subformat
    body = little_endian([2**22, -(2**21)], 24)
    chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def test_an_extensible_header_is_read_where_its_subformat_is_pcm() -> None:
    assert read_wav(extensible(PCM), "a.wav").samples.tolist() == [0.5, -0.25]
    with pytest.raises(DamagedDataError, match=r"a\.wav: byte 44: expected the subformat of PCM, found 03"):
        read_wav(extensible(b"\3" + PCM[1:]), "a.wav")


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, b"RIFX", r"byte 0: expected 'RIFF', found b'RIFX'"),
        (8, b"AVI ", r"byte 8: expected 'WAVE', found b'AVI '"),
        (12, b"junk", r"byte 36: expected a chunk 'fmt ' before 'data', found none"),
        (16, b"\x0f\0\0\0", r"byte 16: expected a chunk 'fmt ' of at least 16 bytes, found 15"),
        (16, b"\xff\0\0\0", r"byte 16: expected a chunk 'fmt ' of 255 bytes, found 28 bytes"),
        (20, b"\xfe\xff", r"byte 16: expected an extensible chunk 'fmt ' of at least 40 bytes, found 16"),
        (20, b"\3\0", r"byte 20: expected encoding 1 \(PCM\), found 3 \(IEEE float\)"),
        (20, b"\x99\x09", r"byte 20: expected encoding 1 \(PCM\), found 2457"),
        (22, b"\0\0", r"byte 22: expected at least one channel, found 0"),
        (24, b"\0\0\0\0", r"byte 24: expected 1 to 768000 samples a second, found 0"),
        (24, b"\xff\xff\xff\xff", r"byte 24: expected 1 to 768000 samples a second, found 4294967295"),
        (32, b"\3\0", r"byte 32: expected 2 bytes for 1 samples of 16 bits, found 3"),
        (34, b"\x0c\0", r"byte 34: expected samples of 8, 16, 24 or 32 bits, found 12"),
        (36, b"junk", r"byte 48: expected a chunk 'data', found the end"),
        (40, b"\0\0\0\0", r"byte 40: expected a multiple of 2 bytes of samples, found 0"),
        (40, b"\3\0\0\0", r"byte 40: expected a multiple of 2 bytes of samples, found 3"),
        (40, b"\6\0\0\0", r"byte 40: expected a chunk 'data' of 6 bytes, found 4 bytes to the end"),
    ],
)
def test_a_damage_is_named_with_file_and_byte(at: int, new: bytes, message: str) -> None:
    content = bytearray(written(little_endian([1, 2], 16)))
    content[at : at + len(new)] = new
    with pytest.raises(DamagedDataError, match=rf"^folder/a\.wav: {message}.*; replace the file"):
        read_wav(bytes(content), "folder/a.wav")


def test_a_file_cut_anywhere_is_refused() -> None:
    content = written(little_endian([1, 2, 3], 16))
    for length in range(len(content)):
        with pytest.raises(DamagedDataError, match=r"^a\.wav: byte \d+: expected"):
            read_wav(content[:length], "a.wav")


def test_thousands_of_damaged_files_raise_nothing_else() -> None:
    """Bytes changed at random, mostly in the header, and files cut: samples in range, or the typed error."""
    random = np.random.default_rng(21)
    whole = [written(random.bytes(240), bits, channels) for bits in (8, 16, 24, 32) for channels in (1, 2)]
    whole.append(extensible(PCM))
    refused = read = 0
    for number in range(4000):
        content = bytearray(whole[number % len(whole)])
        for _ in range(random.integers(1, 4)):
            content[random.integers(0, 60)] = random.choice((0, 1, 3, 16, 127, 254, 255, random.integers(256)))
        if number % 5 == 0:
            del content[random.integers(0, len(content)) :]
        try:
            samples = read_wav(bytes(content), "a.wav").samples
        except DamagedDataError:
            refused += 1
        else:
            read += 1
            assert samples.size > 0
            assert np.abs(samples).max() <= 1
    assert refused > 1000
    assert read > 500
