"""Frames are computed once and kept as far as memory allows; a context is the same whether they are kept or not."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ChangedDataError, DamagedDataError
from adamctl.roles.data.speech import frame_store
from adamctl.roles.data.speech.frame_store import FrameStore
from adamctl.roles.data.speech.log_mel import LogMel, MelSettings, contexts
from adamctl.roles.data.speech.recordings import Recording, list_places, open_recordings
from tests.roles.data.speech.sounds import RATE_HZ, noise, write_recordings

LENGTHS = {"0_a.wav": 1000, "0_b.wav": 90, "0_c.wav": 200, "0_d.wav": 2345}  # 11, 1, 1 and 27 frames
CONTEXT = 3
LOG_MEL = LogMel(MelSettings(bands=20), RATE_HZ)
ROW_BYTES = 4 * 20


def opened(folder: Path, budget_bytes: int = 1 << 20, center: bool = False) -> FrameStore:
    write_recordings(folder, LENGTHS)
    recordings = open_recordings(
        list_places(folder, DataConfig(format="audio", source="x", class_from="name")), list(LENGTHS), str(folder)
    )
    return FrameStore(
        recordings, LOG_MEL, context=CONTEXT, center=center, budget_bytes=budget_bytes, origin=str(folder)
    )


def expected(center: bool = False) -> list[NDArray[np.float32]]:
    """The contexts of each recording, computed from all of its samples."""
    found = []
    for seed, samples in enumerate(LENGTHS.values()):
        frames = LOG_MEL.frames(noise(samples, seed))
        if center:
            frames = frames - frames.mean(axis=0, dtype=np.float64).astype(np.float32)
        found.append(contexts(frames, CONTEXT))
    return found


def every_frame(store: FrameStore) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    recordings = np.repeat(np.arange(len(store.counts)), store.counts)
    frames = np.concatenate([np.arange(count) for count in store.counts])
    order = np.random.default_rng(1).permutation(len(frames))
    return recordings[order], frames[order]


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("kept", [0, 1, 2, 3, 4])
def test_a_context_is_the_same_however_much_is_kept(tmp_path: Path, kept: int, center: bool) -> None:
    counts = [11, 1, 1, 27]
    budget_bytes = sum(count + 2 * CONTEXT for count in counts[:kept]) * ROW_BYTES + ROW_BYTES - 1
    store = opened(tmp_path, budget_bytes, center)
    assert store.counts.tolist() == counts and store.all_fit == (kept == 4)
    store.fill(0, 4)
    recordings, frames = every_frame(store)
    out = np.full((len(frames), store.elements), np.nan, np.float32)
    store.gather(recordings, frames, out)
    wanted = expected(center)
    for row, (recording, frame) in enumerate(zip(recordings, frames, strict=True)):
        np.testing.assert_allclose(out[row], wanted[recording][frame], rtol=0, atol=1e-5)
    assert store.size_bytes <= budget_bytes + (0 if kept == 4 else len(counts) * ROW_BYTES)


def test_filling_ahead_reads_each_recording_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    read: list[str] = []

    def counted(recording: frame_store.Recording, start: int, stop: int, origin: str) -> NDArray[np.float32]:
        read.append(recording.name)
        return original(recording, start, stop, origin)

    original = frame_store.read_samples
    monkeypatch.setattr(frame_store, "read_samples", counted)
    store.fill(0, 2)
    store.fill(1, 99)
    out = np.empty((40, store.elements), np.float32)
    store.gather(*every_frame(store), out)
    assert read == list(LENGTHS)


def test_a_single_context_of_a_recording_that_is_not_kept_reads_few_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path, budget_bytes=0)
    read: list[int] = []

    def counted(recording: frame_store.Recording, start: int, stop: int, origin: str) -> NDArray[np.float32]:
        read.append(stop - start)
        return original(recording, start, stop, origin)

    original = frame_store.read_samples
    monkeypatch.setattr(frame_store, "read_samples", counted)
    store.gather(np.array([3]), np.array([12]), np.empty((1, store.elements), np.float32))
    assert read == [2 * CONTEXT * LOG_MEL.hop_samples + LOG_MEL.window_samples]


def test_threads_that_gather_at_once_see_whole_recordings(tmp_path: Path) -> None:
    store, wanted = opened(tmp_path, center=True), expected(center=True)
    recordings, frames = every_frame(store)
    results = [np.empty((len(frames), store.elements), np.float32) for _ in range(4)]
    threads = [threading.Thread(target=store.gather, args=(recordings, frames, out)) for out in results]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for out in results:
        np.testing.assert_array_equal(
            out, np.stack([wanted[one][at] for one, at in zip(recordings, frames, strict=True)])
        )


def test_those_are_kept_that_are_read_first(tmp_path: Path) -> None:
    """So a server that is asked for a part of the recordings keeps that part."""
    store = opened(tmp_path, budget_bytes=(27 + 2 * CONTEXT + 1 + 2 * CONTEXT) * ROW_BYTES)
    out = np.empty((1, store.elements), np.float32)
    for number in (3, 0, 2, 1):
        store.gather(np.array([number]), np.array([0]), out)
    for name in ("0_d.wav", "0_c.wav"):
        (tmp_path / name).unlink()
    for number in (3, 2):
        store.gather(np.array([number]), np.array([0]), out)
        np.testing.assert_array_equal(out[0], expected()[number][0])
    for number, name in ((0, "0_a.wav"), (1, "0_b.wav")):
        (tmp_path / name).unlink()
        with pytest.raises(DamagedDataError, match=name):
            store.gather(np.array([number]), np.array([0]), out)


def test_a_recording_that_cannot_be_read_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    store = opened(tmp_path)
    (tmp_path / "0_d.wav").unlink()
    out = np.empty((1, store.elements), np.float32)
    with pytest.raises(DamagedDataError, match=r"0_d\.wav"):
        store.gather(np.array([3]), np.array([0]), out)
    store.gather(np.array([0]), np.array([5]), out)
    np.testing.assert_array_equal(out[0], expected()[0][5])


@pytest.mark.parametrize("budget_bytes", [0, 1 << 20])
@pytest.mark.parametrize(("error", "reads"), [(DamagedDataError, 1), (ChangedDataError, 3)])
def test_a_damaged_flac_file_is_decoded_once_and_not_for_each_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_bytes: int, error: type[Exception], reads: int
) -> None:
    store = opened(tmp_path, budget_bytes)
    store._recordings = [recording._replace(wav=None) for recording in store._recordings]
    asked: list[str] = []

    def broken(recording: Recording, *arguments: object) -> None:
        asked.append(recording.name)
        raise error(f"{recording.name}: a bad frame")

    monkeypatch.setattr(frame_store, "read_samples", broken)
    for frame in range(3):
        with pytest.raises(error, match=r"0_d\.wav: a bad frame"):
            store.gather(np.array([3]), np.array([frame]), np.empty((1, store.elements), np.float32))
    assert asked == ["0_d.wav"] * reads
