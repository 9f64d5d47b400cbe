"""FLAC files: the header is read by ourselves, the samples by soundfile; damage is named."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.speech.flac import HEADER_BYTES, FlacHeader, read_flac, read_flac_header
from tests.roles.data.speech.sounds import noise

soundfile = pytest.importorskip("soundfile", reason="needs the audio extra")


def flac_bytes(samples: int = 500, rate_hz: int = 8000, channels: int = 1) -> bytes:
    file = io.BytesIO()
    values = np.stack([noise(samples, seed) for seed in range(channels)], axis=1)
    soundfile.write(file, values, rate_hz, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def test_samples_are_those_that_were_written() -> None:
    sound = read_flac(flac_bytes(), "a.flac")
    assert sound.rate_hz == 8000 and sound.samples.dtype == np.float32
    assert sound.samples.tolist() == noise(500, 0).tolist()
    both = read_flac(flac_bytes(channels=2), "a.flac").samples
    np.testing.assert_allclose(both, (noise(500, 0) + noise(500, 1)) / 2, atol=1e-7)


def test_the_header_says_rate_and_length() -> None:
    assert read_flac_header(flac_bytes(1234, 44100)[:HEADER_BYTES], 4000, "a.flac") == FlacHeader(44100, 1234)


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (0, b"OggS", r"byte 0: expected 'fLaC', found b'OggS'"),
        (4, b"\x01", r"byte 4: expected the block STREAMINFO of 34 bytes, found 01"),
        (18, bytes(8), r"byte 18: expected at least 1 sample a second, found 0"),
        (21, b"\xf0" + bytes(4), r"byte 21: expected how many samples there are, found 0"),
        (21, b"\xff" * 5, r"byte 21: expected at most as many samples as \d+ bytes can hold, found 68719476735"),
    ],
)
def test_a_damaged_header_is_named_with_its_byte(at: int, new: bytes, message: str) -> None:
    content = bytearray(flac_bytes())
    content[at : at + len(new)] = new
    with pytest.raises(DamagedDataError, match=rf"^r/a\.flac: {message}"):
        read_flac_header(bytes(content), len(content), "r/a.flac")


def test_a_file_cut_or_changed_is_refused_or_read() -> None:
    whole, random = flac_bytes(), np.random.default_rng(21)
    refused = 0
    for number in range(300):
        content = bytearray(whole)
        if number % 2:
            del content[random.integers(0, len(content)) :]
        else:
            content[random.integers(0, len(content))] ^= 1 << random.integers(8)
        try:
            read_flac_header(bytes(content[:HEADER_BYTES]), len(content), "a.flac")
            read_flac(bytes(content), "a.flac")
        except DamagedDataError:
            refused += 1
    assert refused > 50


def test_without_soundfile_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    content = flac_bytes()
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ConfigurationError, match=r"a\.flac: .*pip install 'adamctl\[audio\]'"):
        read_flac(content, "a.flac")
