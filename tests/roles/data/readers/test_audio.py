"""Recordings by class: an example is a frame with its neighbours, with the label of its recording or its own."""

from __future__ import annotations

import tarfile
import threading
import wave
from math import ceil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.config.data import DataConfig, FeaturesConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.core import FILE_ORDER, SKIPPED, Range
from adamctl.roles.data.describe.look import Needs, look
from adamctl.roles.data.readers import open_source
from adamctl.roles.data.readers.audio import AudioSource
from adamctl.roles.data.readers.source import FILE_SPLITS, decodes
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.sets.skipping import SkippingSource
from adamctl.roles.data.speech.frame_store import FrameStore
from adamctl.roles.data.speech.log_mel import LogMel, MelSettings, contexts
from adamctl.roles.data.speech.recordings import LOST, tar_members
from adamctl.roles.data.store import DataStore
from tests.roles.data.orders import whole_pass
from tests.roles.data.speech.sounds import RATE_HZ, noise, tar_of, wav_bytes, write_recordings

LENGTHS = {
    f"{digit}_{speaker}_{index}.wav": 300 + 97 * (digit + index)
    for digit in (3, 7)
    for speaker in "ab"
    for index in range(3)
}
CONFIG = DataConfig(
    format="audio", source="./set", class_from="name", test_files="*_0.wav", features=FeaturesConfig(bands=8, context=2)
)
SHAPE = (40,)
BUDGET_BYTES = 1 << 20


def opened(path: Path, config: DataConfig = CONFIG, budget_bytes: int = BUDGET_BYTES) -> AudioSource:
    return AudioSource(path, SHAPE, config, budget_bytes)


def of_recording(name: str, center: bool = True) -> NDArray[np.float32]:
    samples = noise(LENGTHS[name], list(LENGTHS).index(name))
    frames = LogMel(MelSettings(bands=8), RATE_HZ).frames(samples)
    return contexts(frames - frames.mean(axis=0) if center else frames, 2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_recordings(tmp_path / "set", LENGTHS)


@pytest.mark.parametrize("budget_bytes", [0, 2000, BUDGET_BYTES])
@pytest.mark.parametrize("as_tar", [False, True])
def test_examples_are_the_contexts_of_the_recordings_in_order(folder: Path, as_tar: bool, budget_bytes: int) -> None:
    source = opened(tar_of(folder, folder.parent / "set.tar") if as_tar else folder, budget_bytes=budget_bytes)
    assert source.classes == ("3", "7") and source.example_shape == SHAPE
    for split in ("train", "test"):
        names = [name for name in sorted(LENGTHS) if name.endswith("_0.wav") == (split == "test")]
        assert source.recording_names(split) == names
        expected = [of_recording(name) for name in names]
        out = np.empty((sum(map(len, expected)), 40), np.float32)
        source.load(split, np.arange(len(out)), out)
        np.testing.assert_allclose(out, np.concatenate(expected), rtol=0, atol=1e-5)
        counts = [len(part) for part in expected]
        assert source.groups(split).tolist() == np.repeat(np.arange(len(names)), counts).tolist()
        assert source.labels(split).tolist() == np.repeat([int(name[0] == "7") for name in names], counts).tolist()
        chosen = np.array([7, 0, len(out) - 1, 7])
        some = np.empty((4, 40), np.float32)
        source.load(split, chosen, some)
        np.testing.assert_allclose(some, out[chosen], rtol=0, atol=1e-5)


def test_without_centring_frames_are_as_they_were_heard(folder: Path) -> None:
    features = msgspec.structs.replace(CONFIG.features, center=False)
    source = opened(folder, msgspec.structs.replace(CONFIG, features=features))
    out = np.empty((2, 40), np.float32)
    source.load("train", np.array([0, 1]), out)
    np.testing.assert_allclose(out, of_recording(source.recording_names("train")[0], center=False)[:2], atol=1e-5)


def test_a_folder_for_each_class_works_as_for_images(tmp_path: Path) -> None:
    write_recordings(tmp_path, {"train/yes/a.wav": 500, "train/no/a.wav": 500, "test/no/b.wav": 300})
    source = opened(tmp_path, msgspec.structs.replace(CONFIG, class_from="folder", test_files=""))
    assert source.classes == ("no", "yes")
    assert source.labels("train").tolist() == [0] * 4 + [1] * 4 and source.labels("test").tolist() == [0] * 2


def test_each_frame_has_the_class_that_the_alignment_says(folder: Path) -> None:
    lines = []
    for name, samples in LENGTHS.items():
        end_ms = samples / 8
        lines += [f"{name} 0 {end_ms / 2} sil", f"{name} {end_ms / 2} {ceil(end_ms)} {'t' if name[0] == '3' else 's'}"]
    lines[0] = "3_a_0.wav 20 30 sil"
    (folder / "words.txt").write_text("\n".join(lines))
    config = msgspec.structs.replace(CONFIG, alignment="words.txt")
    source = opened(folder, config)
    assert source.classes == ("s", "sil", "t")
    # The middles of the first recording's frames are 12.5, 22.5, ... 52.5 ms; those at 12.5 and 32.5 are in no segment.
    assert source.labels("test")[:4].tolist() == [1, 2, 2, 1]
    out = np.empty((3, 40), np.float32)
    source.load("test", np.arange(3), out)
    np.testing.assert_allclose(out, of_recording("3_a_0.wav")[[1, 3, 4]], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("3_a_0.wav 0 10 t\n9_z_9.wav 0 10 t", r"line 2: expected the name of a recording.*found 9_z_9\.wav"),
        ("3_a_0.wav 0 10 t", r"words\.txt: expected a line for 3_a_1\.wav, found none; add it"),
        ("3_a_0.wav 0 9000 t", r"words\.txt: line 1: expected a segment of 3_a_0\.wav that ends by 98\.9 ms"),
    ],
)  # fmt: skip
def test_an_alignment_that_does_not_fit_the_recordings_is_refused(folder: Path, lines: str, message: str) -> None:
    if "9000" in lines:
        lines = "\n".join([lines, *(f"{name} 0 10 t" for name in LENGTHS if name != "3_a_0.wav")])
    (folder / "words.txt").write_text(lines)
    with pytest.raises(DamagedDataError, match=message):
        opened(folder, msgspec.structs.replace(CONFIG, alignment="words.txt"))


def test_an_input_of_another_size_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"input is \[440\], but 5 frames of 8 bands are \[40\]"):
        AudioSource(folder, (440,), CONFIG, BUDGET_BYTES)


def test_a_damaged_recording_is_named_when_the_data_are_opened(folder: Path) -> None:
    content = (folder / "3_b_1.wav").read_bytes()
    (folder / "3_b_1.wav").write_bytes(content[:-1])
    with pytest.raises(DamagedDataError, match=r"set/3_b_1\.wav: byte 40: expected a chunk 'data' of"):
        opened(folder)
    (folder / "3_b_1.wav").write_bytes(b"")
    with pytest.raises(DamagedDataError, match=r"set/3_b_1\.wav: byte 0: expected 'RIFF', found b''"):
        opened(folder)


@pytest.mark.parametrize("alignment", ["", "words.txt"])
def test_a_damaged_recording_can_be_skipped_as_one_example(folder: Path, alignment: str) -> None:
    (folder / "words.txt").write_text("\n".join(f"{name} 0 {samples / 8} t" for name, samples in LENGTHS.items()))
    config = msgspec.structs.replace(CONFIG, on_error="skip", scale="none", alignment=alignment)
    whole = opened(folder, config)
    number = whole.recording_names("train").index("3_b_1.wav")
    expected = np.empty((len(whole.labels("train")), 40), np.float32)
    whole.load("train", np.arange(len(expected)), expected)
    (folder / "3_b_1.wav").write_bytes(b"RIFF")
    source = opened(folder, config)
    assert (source.groups("train") == number).sum() == 1
    for task in source.fill_tasks():
        task()
    dataset = OpenDataSet("x", config, source, 7, BUDGET_BYTES)
    count = dataset.examples["train"]
    images, labels = np.empty((count, 40), np.float32), np.empty(count, np.int32)
    dataset.gather(Range("train", FILE_ORDER, 0, count), images, labels)
    skipped = source.groups("train") == number
    assert (labels[skipped] == SKIPPED).all() and (labels[~skipped] != SKIPPED).all()
    np.testing.assert_allclose(images[~skipped], expected[whole.groups("train") != number], rtol=0, atol=1e-5)


@pytest.mark.parametrize("alignment", ["", "words.txt"])
def test_what_is_behind_a_damaged_header_of_a_tar_is_skipped_as_one_example(folder: Path, alignment: str) -> None:
    tar = tar_of(folder, folder.parent / "set.tar")
    text = "\n".join(f"{name} 0 {samples / 8} t" for name, samples in LENGTHS.items())
    (folder.parent / "words.txt").write_text(text)
    whole = opened(tar, msgspec.structs.replace(CONFIG, alignment=alignment))
    content, members = bytearray(tar.read_bytes()), tar_members(tar)
    names = list(members)
    content[members[names[-3]].start - 512] ^= 1
    tar.write_bytes(content)
    config = msgspec.structs.replace(CONFIG, on_error="skip", scale="none", alignment=alignment)
    with pytest.raises(DamagedDataError, match="checksum is wrong"):
        opened(tar, msgspec.structs.replace(config, on_error="fail"))
    source = opened(tar, config)
    dataset = OpenDataSet("x", config, source, 7, BUDGET_BYTES)
    count = dataset.examples["train"]
    labels = np.empty(count, np.int32)
    dataset.gather(Range("train", FILE_ORDER, 0, count), np.empty((count, 40), np.float32), labels)
    assert labels[-1] == SKIPPED and (labels[:-1] != SKIPPED).all() and dataset.skipped == 1
    assert source.classes == whole.classes
    assert {*source.recording_names("train"), *source.recording_names("test")} == {*names[:-3], LOST}


def test_each_link_of_a_tar_and_all_behind_a_damaged_header_count_as_one_example_each(folder: Path) -> None:
    path = folder.parent / "set.tar"
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for number, name in enumerate(sorted(LENGTHS)):
            if number in (1, 2):
                link = tarfile.TarInfo(f"link {number}")
                link.type, link.linkname = tarfile.SYMTYPE, name
                archive.addfile(link)
            archive.add(folder / name, name)
        behind = archive.offset
        archive.add(folder / name, "another.wav")
    content = bytearray(path.read_bytes())
    content[behind] ^= 1
    path.write_bytes(content)
    source = opened(path, msgspec.structs.replace(CONFIG, on_error="skip", scale="none"))
    skipping = SkippingSource(source)
    for split in FILE_SPLITS:
        count = len(source.labels(split))
        skipping.load(split, np.arange(count), np.empty((count, 40), np.float32))
    assert skipping.skipped == source.recording_names("train").count(LOST) == 3


def test_if_all_recordings_are_damaged_none_can_be_skipped(tmp_path: Path) -> None:
    for name in ("3_a_1.wav", "3_a_2.wav"):
        (tmp_path / name).write_bytes(b"RIFF")
    with pytest.raises(DamagedDataError, match=r"3_a_1\.wav: byte 8: expected 'WAVE'"):
        opened(tmp_path, msgspec.structs.replace(CONFIG, on_error="skip", test_files=""))


def test_a_look_reads_headers_and_labels(folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, source=str(folder), validation=0.3)
    source = opened(folder, config)
    found = look(config, Needs(SHAPE, 2, 4, 7))
    assert found.classes == 2 and found.examples["test"] == len(source.labels("test"))
    dataset = OpenDataSet("x", config, source, 7, BUDGET_BYTES)
    assert found.examples == dataset.examples
    with pytest.raises(ConfigurationError, match=r"example \d+ has label 1, but the model's last layer has 1 units"):
        look(config, Needs(SHAPE, 1, 4, 7))


def test_a_validation_part_holds_out_whole_recordings(folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, validation=0.3)
    source = opened(folder, config)
    groups = source.groups("train")
    for seed in range(5):
        dataset = OpenDataSet("x", config, source, seed, BUDGET_BYTES)
        held_out, trained = (set(groups[whole_pass(dataset, split, 0)]) for split in ("validation", "train"))
        assert not held_out & trained and len(held_out | trained) == 8
        wanted = round(0.3 * len(groups))
        assert wanted <= dataset.examples["validation"] < wanted + max(np.bincount(groups))


def test_a_data_server_keeps_frames_and_no_contexts(folder: Path) -> None:
    config = msgspec.structs.replace(CONFIG, source=str(folder), scale="standard")
    store = DataStore([], threads=2)
    try:
        dataset = store.open(config, SHAPE, 7)
        assert isinstance(dataset.source, AudioSource) and dataset.source.resident
        frames = sum(LogMel(MelSettings(bands=8), RATE_HZ).frame_count(samples) + 4 for samples in LENGTHS.values())
        labels = 8 * len(dataset.source.labels("train")) + 8 * len(dataset.source.labels("test"))
        assert dataset.size_bytes == dataset.held_bytes == 4 * 8 * frames + labels
        count = dataset.examples["train"]
        images, labels_read = np.empty((count, 40), np.float32), np.empty(count, np.int32)
        dataset.gather(Range("train", FILE_ORDER, 0, count), images, labels_read)
        dataset.scaling.apply(images)
        assert abs(float(images.mean())) < 1e-3 and abs(float(images.std()) - 1) < 1e-3
    finally:
        store.close()


def test_a_data_server_computes_frames_ahead_of_need(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled, all_filled = [], threading.Event()
    original = FrameStore.fill

    def fill(store: FrameStore, start: int, stop: int) -> None:
        original(store, start, stop)
        filled.append((start, stop))
        all_filled.set()

    monkeypatch.setattr(FrameStore, "fill", fill)
    store = DataStore([], threads=1)
    try:
        dataset = store.open(msgspec.structs.replace(CONFIG, source=str(folder), scale="none"), SHAPE, 7)
        assert all_filled.wait(20) and filled == [(0, 32)]
        for path in folder.iterdir():
            path.unlink()
        dataset.source.load("test", np.arange(5), np.empty((5, 40), np.float32))
    finally:
        store.close()


def test_a_recording_of_another_rate_or_no_recordings_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "3_b_1.wav").write_bytes(wav_bytes(noise(100, 0), rate_hz=11025))
    with pytest.raises(ConfigurationError, match=r"3_b_1\.wav: byte 24: expected 8000 samples a second"):
        opened(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="expected WAV or FLAC files, found none"):
        opened(tmp_path / "empty")


def test_the_spoken_digits_are_read(fsdd: Path) -> None:
    config = DataConfig(format="audio", source=str(fsdd), class_from="name", test_files="*_[0-4].wav", scale="standard")
    source = open_source(config, fsdd, (440,))
    assert isinstance(source, AudioSource)
    assert source.classes == tuple("0123456789")
    assert len(source.recording_names("test")) == 300 and len(source.recording_names("train")) == 2700
    out = np.empty((100, 440), np.float32)
    source.load("train", np.linspace(0, len(source.labels("train")) - 1, 100).astype(np.int64), out)
    assert np.isfinite(out).all() and 1 < out.std() < 5


@pytest.mark.slow
def test_frames_of_the_spoken_digits_are_those_of_librosa(fsdd: Path) -> None:
    librosa = pytest.importorskip("librosa")
    config = DataConfig(
        format="audio", source=str(fsdd), class_from="name", features=FeaturesConfig(context=0, center=False)
    )
    source = open_source(config, fsdd, (40,))
    assert isinstance(source, AudioSource)
    groups, names = source.groups("train"), source.recording_names("train")
    with tarfile.open(fsdd) as archive:
        for number in range(0, len(names), 120):
            indices = np.flatnonzero(groups == number)
            frames = np.empty((len(indices), 40), np.float32)
            source.load("train", indices, frames)
            content = archive.extractfile(names[number])
            assert content is not None
            with wave.open(content) as file:
                samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768
            around = np.pad(samples, 28)  # there the window lies in the middle of the transform
            energies = librosa.feature.melspectrogram(
                y=around, sr=8000, n_fft=256, win_length=200, hop_length=80, center=False, n_mels=40, fmin=20.0,
                fmax=4000.0, htk=True, norm=None,
            )  # fmt: skip
            expected = np.log(np.maximum(energies.T, 1e-10))
            np.testing.assert_allclose(frames, expected[: len(frames)], rtol=0, atol=1e-4, err_msg=names[number])


@pytest.mark.parametrize(("memory_bytes", "all_fit"), [(8000, False), (1 << 30, True)])
def test_a_bounded_server_keeps_frames_within_its_share(folder: Path, memory_bytes: int, all_fit: bool) -> None:
    store = DataStore(threads=1, memory_bytes=memory_bytes)
    try:
        config = msgspec.structs.replace(CONFIG, source=str(folder), memory_share=0.5)
        assert store.open(config, SHAPE, 0).source.resident == all_fit
    finally:
        store.close()


def test_servers_of_any_memory_have_the_same_set(tmp_path: Path) -> None:
    lengths = {f"{kind}_{number}.wav": 60_000 for kind in "ab" for number in range(3)}
    folder = write_recordings(tmp_path / "long", lengths)
    config = msgspec.structs.replace(CONFIG, source=str(folder), test_files="*_2.wav", scale="standard")
    found = []
    for memory_bytes in (100_000, 1 << 30):
        store = DataStore(threads=1, memory_bytes=memory_bytes)
        try:
            dataset = store.open(config, SHAPE, 0)
            found.append((dataset.source.resident, decodes(dataset.source), dataset.scaling))
        finally:
            store.close()
    (small, _, scaling), (large, _, other) = found
    assert (small, large) == (False, True) and all(shared for _, shared, _ in found)
    assert scaling.factor == pytest.approx(other.factor, rel=1e-6)
    assert scaling.shift == pytest.approx(other.shift, rel=1e-6)
