"""Recordings, WAV or FLAC, in a folder or a tar: an example is a frame with its neighbours (DistBelief 5).

`adamctl.roles.data.speech` computes frames. Labels are one per recording, or one per frame from an alignment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.memory import bytes_for
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import FILE_SPLITS, FileSplit, Labels, Peek
from adamctl.roles.data.readers.splits import arrange
from adamctl.roles.data.speech.alignment import Marked, mark, number_classes, read_alignment
from adamctl.roles.data.speech.frame_store import FrameStore, Indices
from adamctl.roles.data.speech.log_mel import LogMel, MelSettings
from adamctl.roles.data.speech.recordings import (
    LOST,
    Recording,
    check_file_name,
    list_places,
    lost_recording,
    open_recordings,
    place_of,
    places_before_damage,
    read_text,
)

_FILL_RECORDINGS: Final = 32  # one task for a thread: some 10 ms of work
CONTEXT_MAX: Final = 100

READER: Final = Reader(
    "audio",
    (".tar",),
    open=f"{__name__}:open_audio",
    extra="audio",
    peek=f"{__name__}:peek_audio",
    reads_config=True,
    reads_budget=True,
    files=f"{__name__}:audio_files",
)


class AudioSource:
    """Frames with their neighbours side by side, float32 [(2 context + 1) bands]: natural logarithms of energies.

    Frames are computed when they are first needed, or ahead of that by `fill_tasks`, and kept within
    `data.memory_share`. Of recordings that do not fit, those of each context are computed when it is read.
    """

    format = "audio"
    dtype = np.dtype(np.float32)
    value_max = 1.0
    keeps_examples = True

    def __init__(self, path: Path, input_shape: Sequence[int] | None, config: DataConfig, budget_bytes: int) -> None:
        """Lists the recordings and reads their headers. `budget_bytes`: memory for frames.

        Raises:
            ConfigurationError: no recordings, different rates, an impossible feature, or a model's input of other size.
            DamagedDataError: a header, the tar or the alignment is damaged.
        """
        features = config.features
        self.origin = str(path)
        self.example_shape = (_elements(config),)
        if not 0 <= features.context <= CONTEXT_MAX:
            raise ConfigurationError(
                f"data.features.context: expected from 0 to {CONTEXT_MAX} frames, found {features.context}"
            )
        if input_shape is not None and tuple(input_shape) != self.example_shape:
            raise ConfigurationError(
                f"the model's input is {list(input_shape)}, but {2 * features.context + 1} frames of {features.bands} "
                f"bands are {list(self.example_shape)}: set model.input, data.features.context or data.features.bands"
            )
        skip = config.on_error == "skip"
        places, damages = places_before_damage(path, config) if skip else (list_places(path, config), [])
        arranged = arrange(places, config, self.origin, with_classes=not config.alignment)
        names = [name for split in FILE_SPLITS for name in arranged.names[split]]
        self._recordings = open_recordings(places, names, self.origin, skip=skip)
        self._split_at = len(arranged.names["train"])
        of_recording = np.concatenate([arranged.labels[split] for split in FILE_SPLITS])
        # Each damage counts as one recording of the first class, which is skipped.
        lost = [lost_recording(path, damage, self._recordings[0].rate_hz) for damage in damages]
        self._recordings[self._split_at : self._split_at] = lost
        of_recording = np.insert(of_recording, self._split_at, np.zeros(len(lost), of_recording.dtype))
        self._split_at += len(lost)
        settings = MelSettings(
            features.bands, features.window_ms, features.hop_ms, features.low_hz, features.high_hz
        )  # fmt: skip
        self._log_mel = LogMel(settings, self._recordings[0].rate_hz)
        self._features = features
        self._store = self._new_store(self._recordings, budget_bytes, self.origin)
        if config.alignment:
            self.classes, marked = self._aligned(path, config.alignment)
        else:
            self.classes = arranged.classes
            counts = self._store.counts.tolist()
            marked = [
                Marked(np.arange(count), np.full(count, label, np.int32))
                for count, label in zip(counts, of_recording.tolist(), strict=True)
            ]
        self._starts: dict[FileSplit, Indices] = {}
        self._frames: dict[FileSplit, Indices] = {}
        self._labels: dict[FileSplit, Labels] = {}
        self._index("train", marked[: self._split_at])
        self._index("test", marked[self._split_at :])
        self.resident = self._store.all_fit
        self.stored_bytes = sum(place.size_bytes for place in places.values())
        self.resident_bytes = self._store.size_bytes + sum(
            labels.nbytes + self._frames[split].nbytes for split, labels in self._labels.items()
        )

    def labels(self, split: FileSplit) -> Labels:
        """The label of each frame."""
        return self._labels[split]

    def load(self, split: FileSplit, indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Raises DamagedDataError with the recording's name if it cannot be read."""
        recordings = np.searchsorted(self._starts[split], indices, side="right") - 1
        first = 0 if split == "train" else self._split_at
        frames = self._frames[split][indices].astype(np.int64)
        self._store.gather(recordings + first, frames, out.reshape(len(indices), self._store.elements))

    def groups(self, split: FileSplit) -> Indices:
        """Returns the number of each frame's recording, [examples], from 0."""
        counts = np.diff(self._starts[split])
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)

    def recording_names(self, split: FileSplit) -> list[str]:
        """Returns the names of a split's recordings, by their number in `groups`."""
        part = slice(self._split_at) if split == "train" else slice(self._split_at, None)
        return [recording.name for recording in self._recordings[part]]

    def contexts_of(self, path: Path) -> NDArray[np.float32]:
        """Returns the examples of another recording, prepared as these are, [frames, elements].

        Raises:
            ConfigurationError: it has another rate.
            DamagedDataError: it cannot be read.
        """
        recordings = open_recordings({path.name: place_of(path)}, [path.name], str(path.parent))
        if recordings[0].rate_hz != self._recordings[0].rate_hz:
            raise ConfigurationError(
                f"{path}: expected {self._recordings[0].rate_hz} samples a second, as the training data have, found "
                f"{recordings[0].rate_hz}: resample it"
            )
        store = self._new_store(recordings, 1 << 62, str(path.parent))
        out = np.empty((int(store.counts[0]), store.elements), np.float32)
        store.gather(np.zeros(len(out), np.int64), np.arange(len(out)), out)
        return out

    def fill_tasks(self) -> list[Callable[[], None]]:
        """Returns tasks that compute the frames of all recordings; none if there is not memory for all.

        Then those are kept that are read first: this server may be asked for a part of them only.
        """
        count = len(self._recordings) if self.resident else 0
        return [partial(self._store.fill, at, at + _FILL_RECORDINGS) for at in range(0, count, _FILL_RECORDINGS)]

    def _new_store(self, recordings: Sequence[Recording], budget_bytes: int, origin: str) -> FrameStore:
        return FrameStore(
            recordings,
            self._log_mel,
            context=self._features.context,
            center=self._features.center,
            budget_bytes=budget_bytes,
            origin=origin,
        )

    def _index(self, split: FileSplit, marked: Sequence[Marked]) -> None:
        counts = np.array([len(one.frames) for one in marked], np.int64)
        self._starts[split] = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        frames = [one.frames for one in marked] or [np.empty(0, np.int64)]
        self._frames[split] = np.concatenate(frames).astype(np.int32)
        self._labels[split] = np.concatenate([one.labels for one in marked] or [np.empty(0, np.int32)])

    def _aligned(self, path: Path, name: str) -> tuple[tuple[str, ...], list[Marked]]:
        origin = f"{self.origin}/{name}"
        segments = read_alignment(read_text(path, name), origin)
        known = {recording.name for recording in self._recordings}
        for unknown in (name for name in segments if name not in known and LOST not in known):
            raise DamagedDataError(
                f"{origin}: line {segments[unknown][0].line}: expected the name of a recording, such as "
                f"{self._recordings[0].name}, found {unknown}"
            )
        for missing in (one.name for one in self._recordings if one.name not in segments and one.name != LOST):
            raise DamagedDataError(f"{origin}: expected a line for {missing}, found none; add it, or remove the file")
        classes, labels = number_classes((one.class_name for every in segments.values() for one in every), origin)
        marked = [
            mark(one.name, segments[one.name], labels, *self._times_ms(one, int(count)), origin)
            if not one.damage
            else Marked(np.zeros(1, np.int64), np.zeros(1, np.int32))  # which is skipped
            for one, count in zip(self._recordings, self._store.counts, strict=True)
        ]
        return classes, marked

    def _times_ms(self, recording: Recording, frames: int) -> tuple[NDArray[np.float64], float]:
        """Returns the middle of each frame, and where a segment may end: alignments often fill the last window."""
        each_ms = 1000 / recording.rate_hz
        window, hop = self._log_mel.window_samples, self._log_mel.hop_samples
        middles = (np.arange(frames, dtype=np.float64) * hop + window / 2) * np.float64(each_ms)
        return middles, (recording.samples + window) * each_ms


def open_audio(
    path: Path, input_shape: Sequence[int] | None, *, config: DataConfig, budget_bytes: int | None = None
) -> AudioSource:
    """Opens a folder or a tar of recordings. `budget_bytes`: as `open_source` says.

    Raises:
        ConfigurationError, DamagedDataError: as `AudioSource`.
    """
    budget_bytes = bytes_for(config.memory_share) if budget_bytes is None else budget_bytes
    return AudioSource(path, input_shape, config, budget_bytes)


def peek_audio(
    path: Path, input_shape: Sequence[int], examples_max: int, seconds_max: float, *, config: DataConfig
) -> Peek:
    """Reads all headers and labels like `AudioSource`, and the frames of some recordings.

    Raises:
        ConfigurationError, DamagedDataError: like there, for what was read.
    """
    source = AudioSource(path, input_shape, config, 0)
    until_s = time.monotonic() + seconds_max
    out = np.empty((1, *source.example_shape), np.float32)
    for split in FILE_SPLITS:
        examples = len(source.labels(split))
        for index in np.random.default_rng(0).permutation(examples)[: examples_max // 2]:
            source.load(split, index.reshape(1), out)
            if time.monotonic() > until_s:
                break
    return Peek(
        source.classes,
        {split: source.labels(split) for split in FILE_SPLITS},
        {split: source.groups(split) for split in FILE_SPLITS},
    )


def audio_files(path: Path, *, config: DataConfig) -> list[Path]:
    """Returns the recordings of a folder, or the tar, and the alignment where it is a file of its own.

    Raises:
        ConfigurationError: there is no recording, or the alignment's name leads elsewhere.
    """
    check_file_name(config.alignment)
    folder = path if path.is_dir() else path.parent
    recordings = [place.path for place in list_places(path, config).values()] if path.is_dir() else [path]
    alignment = folder / config.alignment
    return [*recordings, alignment] if config.alignment and alignment.is_file() else recordings


def _elements(config: DataConfig) -> int:
    return (2 * config.features.context + 1) * config.features.bands
