"""Checkpoints of models with weights by chance, and layers of the user's own, for predictions."""

from __future__ import annotations

from pathlib import Path

import adamctl as adam
from adamctl.cli.export.checkpoint import write_checkpoint as write
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.model.description import Model
from adamctl.model.initial import initial_rows
from adamctl.model.layout import tensors_of
from tests.custom_layers import NativeRelu


class Failing(adam.Layer):
    """Passes on what it reads, until an input is above 1000."""

    def output_shape(self, input):
        return input

    def connectivity(self):
        return adam.Same()

    def upward(self, part, inputs, parameters, state, out):
        if inputs.max() > 1000:
            raise ValueError("too large for this layer")
        out[...] = inputs

    def downward(self, part, error, inputs, parameters, gradients, state, out):
        if out is not None:
            out[...] = error


class WholeBatches(NativeRelu):
    """Refuses to lay out batches of fewer than `smallest` examples, where kernels are compiled."""

    smallest: int

    def native_upward(self, part, inputs, parameters, state, out):
        if len(inputs) < self.smallest:
            raise ValueError(f"laid out for {len(inputs)} examples")
        return super().native_upward(part, inputs, parameters, state, out)


def write_checkpoint(folder: Path, model: Model, seed: int = 3) -> Path:
    """Writes a finished checkpoint of a model whose data are nowhere, and returns its folder."""
    experiment = Experiment(name="made", model=model, data=DataConfig(format="npz", source="/nowhere.npz"))
    values = {
        tensor.name: initial_rows(tensor, number, 0, tensor.shape[0], seed).reshape(tensor.shape)
        for number, tensor in enumerate(tensors_of(model))
    }
    write(folder, experiment, values)
    return folder
