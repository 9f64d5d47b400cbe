"""Runs examples through a trained model: images of any size, arrays, folders; prepared like its training data."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.launch.metrics import PROBABILITY_MIN
from adamctl.launch.prediction.archives import rows_of
from adamctl.launch.prediction.forward import Forward, predictions
from adamctl.launch.trained import BATCH, Floats, Trained, data_of, open_data
from adamctl.model.metric import takes_targets
from adamctl.roles.data.readers.audio import AudioSource
from adamctl.roles.data.readers.images import Decoder, ImageDecoder
from adamctl.roles.data.scaling import Scaling
from adamctl.roles.data.speech.recordings import ENDINGS as RECORDING_ENDINGS

OnDamaged: TypeAlias = Callable[[DamagedDataError], None]
BYTE_MAX = 255.0
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")


@dataclass(frozen=True)
class Ready:
    """How raw values are prepared like the training data: `of_bytes` for bytes, `of_numbers` for any other type.

    `classes` are the names of the outputs.
    """

    of_bytes: Scaling
    of_numbers: Scaling
    classes: tuple[str, ...]

    def make(self, raw: NDArray[Any]) -> Floats:
        """Returns the examples as the network expects them."""
        values = np.array(raw, np.float32, order="C")
        (self.of_bytes if raw.dtype == np.uint8 else self.of_numbers).apply(values)
        return values


def classify(
    trained: Trained, forward: Forward, files: Sequence[Path], data: Sequence[str], top: int, on_damaged: OnDamaged
) -> Iterator[dict[str, Any]]:
    """Yields, per example, `image` and `classes`: the `top` best, each with `class` and `score`.

    Of a model that was trained on targets, `image` and `outputs`, numbers as targets are. If the model was trained on
    sound, an example is a recording. Files are read as examples are computed, so few of them are in memory. An image or
    recording that cannot be read is left out, and `on_damaged` is called with the error, which names it.

    Raises:
        ConfigurationError: there is no such file, its content does not fit the model, or the scaling needs training
            data that are missing.
        DamagedDataError: an archive cannot be read; what was yielded of it may be wrong, too.
    """
    if trained.experiment.data.format == "audio":
        yield from classify_recordings(trained, forward, files, data, top, on_damaged)
        return
    found = [one for file in files for one in _files(file, IMAGE_ENDINGS, "images")]
    shape = trained.experiment.model.input
    if any(file.suffix != ".npz" for file in found) and (len(shape) != 3 or shape[2] not in (1, 3)):
        raise ConfigurationError(f"this model takes examples of shape {list(shape)}; expected images to classify")
    ready, names = as_trained(trained, data), deque[list[str]]()
    has_targets = takes_targets(trained.experiment.model)

    def parts() -> Iterator[NDArray[Any]]:
        for names_of, raw in _batches(found, shape, trained.experiment.data.decoder, on_damaged):
            names.append(names_of)
            yield raw

    for outputs in predictions(forward, trained.loss, trained.classes, parts(), ready.make):
        for name, row in zip(names.popleft(), outputs, strict=True):
            yield {"image": name, "outputs": row.tolist()} if has_targets else _described(name, row, ready.classes, top)


def classify_recordings(
    trained: Trained, forward: Forward, files: Sequence[Path], data: Sequence[str], top: int, on_damaged: OnDamaged
) -> Iterator[dict[str, Any]]:
    """Yields the same for WAV and FLAC files: scores are geometric means over a recording's frames, of sum 1.

    Raises:
        ConfigurationError: there is no such file, it has another rate than those that the model was trained on, or the
            training data, which its frames are prepared like, are missing.
    """
    found = [one for file in files for one in _files(file, RECORDING_ENDINGS, "WAV or FLAC files")]
    opened = open_data(trained.experiment, data_of(trained.experiment, data))
    source = opened.source
    assert isinstance(source, AudioSource)

    def prepare(values: NDArray[Any]) -> Floats:
        opened.scaling.apply(values)
        return values

    heard = deque[Path]()

    def parts() -> Iterator[NDArray[Any]]:
        for file in found:
            try:
                contexts = source.contexts_of(file)
            except DamagedDataError as error:
                on_damaged(error)
                continue
            heard.append(file)
            yield contexts

    names = trained.class_names or opened.classes
    for outputs in predictions(forward, trained.loss, trained.classes, parts(), prepare):
        logarithms = np.log(np.maximum(outputs, PROBABILITY_MIN)).mean(axis=0)
        scores = np.exp(logarithms - logarithms.max())
        yield _described(str(heard.popleft()), scores / scores.sum(), names, top)


def as_trained(trained: Trained, data: Sequence[str] = ()) -> Ready:
    """Returns how to prepare values, and the names of classes, which the checkpoint has, or else the data.

    `data` are folders that are searched first for the data.

    Raises:
        ConfigurationError: the scaling needs the training data, which are missing.
    """
    config = data_of(trained.experiment, data)
    as_they_are = Scaling(1.0, 0.0)
    try:
        opened = open_data(trained.experiment, config)
    except (ConfigurationError, UnreachableError):
        if config.scale != "unit":
            raise
        names = trained.class_names or tuple(map(str, range(trained.classes)))
        return Ready(Scaling(1.0 / BYTE_MAX, 0.0), as_they_are, names)
    scaling = opened.scaling
    whole = scaling.factor * opened.source.value_max
    numbers = as_they_are if config.scale == "none" else Scaling(whole, scaling.shift)
    return Ready(Scaling(whole / BYTE_MAX, scaling.shift), numbers, trained.class_names or opened.classes)


def fitting(raw: NDArray[Any], shape: Sequence[int], origin: str) -> NDArray[Any]:
    """Returns examples as [n, *shape]; they may lack a last dimension of one channel, or be flattened.

    Raises:
        ConfigurationError: they have another shape or are not numbers; the message starts with `origin`.
    """
    numbers = np.issubdtype(raw.dtype, np.number) or raw.dtype == np.bool_
    if not numbers or np.iscomplexobj(raw) or raw.ndim < 1 or prod(raw.shape[1:]) != prod(shape):
        raise ConfigurationError(f"{origin}: expected numbers [n, {str(list(shape))[1:]}, found {_kind(raw)}")
    if raw.shape[1:] not in (tuple(shape), (prod(shape),), tuple(shape[:-1]) if shape[-1] == 1 else tuple(shape)):
        raise ConfigurationError(f"{origin}: expected examples of shape {list(shape)}, found {_kind(raw)}")
    return raw.reshape(len(raw), *shape)


def _kind(raw: NDArray[Any]) -> str:
    return f"{raw.dtype} {list(raw.shape)}"


def _files(path: Path, endings: Sequence[str], kind: str) -> list[Path]:
    if path.is_dir():
        found = sorted(inner for inner in path.rglob("*") if inner.suffix.lower() in endings)
        if not found:
            raise ConfigurationError(f"{path}: no {kind} in this folder ({', '.join(endings)})")
        return found
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file or folder; expected {kind}")
    return [path]


def _batches(
    files: Sequence[Path], shape: tuple[int, ...], decoder: Decoder, on_damaged: OnDamaged
) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Yields names and raw values of up to BATCH examples of one type."""
    images: list[Path] = []
    for file in files:
        if file.suffix != ".npz":
            images.append(file)
            if len(images) == BATCH:
                yield from _decoded(images, shape, decoder, on_damaged)
                images = []
            continue
        yield from _decoded(images, shape, decoder, on_damaged)
        images, start = [], 0
        for rows in rows_of(file, BATCH):
            part = fitting(rows, shape, str(file))
            yield [f"{file}[{start + row}]" for row in range(len(part))], part
            start += len(part)
    yield from _decoded(images, shape, decoder, on_damaged)


def _decoded(
    images: Sequence[Path], shape: tuple[int, ...], decoder: Decoder, on_damaged: OnDamaged
) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Yields the images that can be decoded together, if there are any."""
    if not images:
        return
    decode = ImageDecoder(shape, decoder).decode_file
    names, decoded = list[str](), list[NDArray[Any]]()
    for path in images:
        try:
            decoded.append(decode(path))
            names.append(str(path))
        except DamagedDataError as error:
            on_damaged(error)
    if names:
        yield names, np.stack(decoded)


def _described(name: str, outputs: Floats, names: tuple[str, ...], top: int) -> dict[str, Any]:
    best = np.argsort(-outputs)[:top]
    return {
        "image": name,
        "classes": [
            {"class": names[index] if index < len(names) else str(index), "score": round(float(outputs[index]), 6)}
            for index in best
        ],
    }
