"""Runs examples through a trained model: images of any size, arrays, folders; prepared like its training data."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError, DamagedDataError, UnreachableError
from adamctl.launch.metrics import PROBABILITY_MIN
from adamctl.launch.trained import BATCH, Floats, Trained, data_of, open_data
from adamctl.model.metric import takes_targets
from adamctl.roles.data.readers.audio import AudioSource
from adamctl.roles.data.readers.images import Decoder, ImageDecoder
from adamctl.roles.data.scaling import Scaling
from adamctl.roles.data.speech.recordings import ENDINGS as RECORDING_ENDINGS

BYTE_MAX = 255.0
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png")
_ARRAYS = ("x", "x_test", "images", "test_images")
"""Names under which an archive holds examples; one with a single array may call it anything."""


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
        values = np.array(raw, np.float32)
        (self.of_bytes if raw.dtype == np.uint8 else self.of_numbers).apply(values)
        return values


def classify(trained: Trained, files: Sequence[Path], data: Sequence[str], top: int) -> list[dict[str, Any]]:
    """Returns, per example, `image` and `classes`: the `top` best, each with `class` and `score`.

    Of a model that was trained on targets, `image` and `outputs`, numbers as targets are. If the model was trained on
    sound, an example is a recording.

    Raises:
        ConfigurationError: there is no such file, its content does not fit the model, or the scaling needs training
            data that are missing.
        DamagedDataError: a file cannot be read; the message names it.
    """
    if trained.experiment.data.format == "audio":
        return classify_recordings(trained, files, data, top)
    found = [one for file in files for one in _files(file, IMAGE_ENDINGS, "images")]
    shape = trained.experiment.model.input
    if any(file.suffix != ".npz" for file in found) and (len(shape) != 3 or shape[2] not in (1, 3)):
        raise ConfigurationError(f"this model takes examples of shape {list(shape)}; expected images to classify")
    ready = as_trained(trained, data)
    results: list[dict[str, Any]] = []
    for names, raw in _batches(found, shape, trained.experiment.data.decoder):
        outputs = predict(trained, ready.make(raw))
        if takes_targets(trained.experiment.model):
            results += [{"image": name, "outputs": row.tolist()} for name, row in zip(names, outputs, strict=True)]
        else:
            results += [_described(name, row, ready.classes, top) for name, row in zip(names, outputs, strict=True)]
    return results


def classify_recordings(trained: Trained, files: Sequence[Path], data: Sequence[str], top: int) -> list[dict[str, Any]]:
    """Returns the same for WAV and FLAC files: scores are geometric means over a recording's frames, of sum 1.

    Raises:
        ConfigurationError: there is no such file, it has another rate than those that the model was trained on, or the
            training data, which its frames are prepared like, are missing.
        DamagedDataError: a file cannot be read; the message names it.
    """
    found = [one for file in files for one in _files(file, RECORDING_ENDINGS, "WAV or FLAC files")]
    opened = open_data(trained.experiment, data_of(trained.experiment, data))
    assert isinstance(opened.source, AudioSource)
    results = []
    for file in found:
        values = opened.source.contexts_of(file)
        opened.scaling.apply(values)
        logarithms = np.log(np.maximum(predict(trained, values), PROBABILITY_MIN)).mean(axis=0)
        scores = np.exp(logarithms - logarithms.max())
        names = trained.class_names or opened.classes
        results.append(_described(str(file), scores / scores.sum(), names, top))
    return results


def predict(trained: Trained, values: Floats) -> Floats:
    """Returns the outputs [n, units] for prepared examples [n, *input shape]."""
    context = trained.network.context(training=False)
    parts = [values[start : start + BATCH] for start in range(0, len(values), BATCH)]
    outputs = [np.array(trained.network.predict(context, trained.parameters, part)) for part in parts]
    return np.concatenate(outputs) if outputs else np.empty((0, trained.classes), np.float32)


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
    files: Sequence[Path], shape: tuple[int, ...], decoder: Decoder
) -> Iterator[tuple[list[str], NDArray[Any]]]:
    """Yields names and raw values of up to BATCH examples of one type."""
    images: list[Path] = []
    for file in files:
        if file.suffix != ".npz":
            images.append(file)
            if len(images) == BATCH:
                yield _decoded(images, shape, decoder)
                images = []
            continue
        if images:
            yield _decoded(images, shape, decoder)
            images = []
        examples = fitting(_array(file), shape, str(file))
        for start in range(0, len(examples), BATCH):
            part = examples[start : start + BATCH]
            yield [f"{file}[{start + row}]" for row in range(len(part))], part
    if images:
        yield _decoded(images, shape, decoder)


def _decoded(images: Sequence[Path], shape: tuple[int, ...], decoder: Decoder) -> tuple[list[str], NDArray[Any]]:
    decode = ImageDecoder(shape, decoder).decode_file
    return list(map(str, images)), np.stack([decode(path) for path in images])


def _array(file: Path) -> NDArray[Any]:
    try:
        with np.load(file, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DamagedDataError(f"{file}: expected an .npz archive, found a single array")
            names = [name for name in _ARRAYS if name in archive] or list(archive)[: 1 if len(archive) == 1 else 0]
            if not names:
                held = ", ".join(archive) or "none"
                raise ConfigurationError(
                    f"{file}: expected one array, or one called {', '.join(_ARRAYS)}; found {held}"
                )
            found: NDArray[Any] = archive[names[0]]
            return found
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, RuntimeError) as error:
        raise DamagedDataError(f"{file}: expected an .npz archive of plain arrays, found: {error}") from error


def _described(name: str, outputs: Floats, names: tuple[str, ...], top: int) -> dict[str, Any]:
    best = np.argsort(-outputs)[:top]
    return {
        "image": name,
        "classes": [
            {"class": names[index] if index < len(names) else str(index), "score": round(float(outputs[index]), 6)}
            for index in best
        ],
    }
