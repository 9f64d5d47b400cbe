"""Made-up recordings for the tests of speech."""

from __future__ import annotations

import io
import tarfile
import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 8000


def noise(samples: int, seed: int) -> NDArray[np.float32]:
    """Samples in [-0.5, 0.5) that 16 bits hold exactly."""
    return (np.random.default_rng(seed).integers(-16384, 16384, samples) / 32768).astype(np.float32)


def wav_bytes(samples: NDArray[np.float32], rate_hz: int = RATE_HZ) -> bytes:
    """A WAV file of 16 bits and one channel, as the standard library writes it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate_hz)
        out.writeframes((samples * 32768).astype("<i2").tobytes())
    return file.getvalue()


def write_recordings(folder: Path, lengths: dict[str, int]) -> Path:
    """Writes noise of so many samples under each name; the first has seed 0, the next 1, and so on."""
    for seed, (name, samples) in enumerate(lengths.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(wav_bytes(noise(samples, seed)))
    return folder


def tar_of(folder: Path, path: Path) -> Path:
    """Writes a tar of what is in a folder."""
    with tarfile.open(path, "w") as archive:
        archive.add(folder, arcname=".")
    return path
