"""Pictures of any size through a trained model: made ready as its training data were, then classified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adamctl.errors import ConfigurationError
from adamctl.launch.trained import BATCH, Floats, Trained, data_of, open_data
from adamctl.roles.data.decode import Scaling, scaling_for
from adamctl.roles.data.readers.imagefolder import decode_image

BYTE_MAX = 255.0


def classify(trained: Trained, images: Sequence[Path], data: Sequence[str], top: int) -> list[dict[str, Any]]:
    """Returns, per image, `image` and `classes`: the `top` best, each with `class` and `score`.

    Raises:
        ConfigurationError: there is no such image, the model does not take images, or its scaling needs training data
            that are not there.
        DamagedDataError: an image cannot be decoded; the message names it.
    """
    for path in images:
        if not path.is_file():
            raise ConfigurationError(f"{path}: no such image file")
    shape = trained.experiment.model.input
    if len(shape) != 3 or shape[2] not in (1, 3):
        raise ConfigurationError(f"this model takes examples of shape {list(shape)}; expected images to classify")
    scaling, names = _as_trained(trained, data)
    context = trained.network.context(0, training=False)
    results: list[dict[str, Any]] = []
    for start in range(0, len(images), BATCH):
        part = images[start : start + BATCH]
        values = np.stack([decode_image(path, shape) for path in part]).astype(np.float32)
        scaling.apply(values)
        outputs = trained.network.predict(context, trained.parameters, values)
        results += [_described(path, row, names, top) for path, row in zip(part, outputs, strict=True)]
    return results


def _as_trained(trained: Trained, data: Sequence[str]) -> tuple[Scaling, tuple[str, ...]]:
    """Returns the scaling of bytes and the names of classes; numbers where only the data would have names."""
    config = data_of(trained.experiment, data)
    try:
        opened = open_data(trained.experiment, config)
    except ConfigurationError:
        if config.scale != "unit":
            raise
        return Scaling(1.0 / BYTE_MAX, 0.0), tuple(map(str, range(trained.network.shapes[-1].output[0])))
    train = opened.order("train", -1)
    scaling = scaling_for(config.scale, opened.source, train)
    return Scaling(scaling.factor * opened.source.value_max / BYTE_MAX, scaling.shift), opened.classes


def _described(path: Path, outputs: Floats, names: tuple[str, ...], top: int) -> dict[str, Any]:
    best = np.argsort(-outputs)[:top]
    return {
        "image": str(path),
        "classes": [{"class": names[index], "score": round(float(outputs[index]), 6)} for index in best],
    }
