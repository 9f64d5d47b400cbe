"""The figures of `adamctl summary`, as plain values."""

from __future__ import annotations

from math import prod
from typing import Any

from adamctl.config.experiment import Experiment
from adamctl.kernels.operation import Buffers
from adamctl.kernels.step.network import Network
from adamctl.launch.reckoning import servers_part
from adamctl.model.layout import ELEMENT_BYTES, build_layout
from adamctl.model.protocol import bytes_per_push
from adamctl.model.shapes import infer, written_type


def figures_of(experiment: Experiment) -> dict[str, Any]:
    """Returns totals and, per layer, shape, parameters, connections, context memory and bytes per push.

    Raises:
        ConfigurationError: the layers do not fit together, the model has no parameters, or a batch algorithm cannot be
            found or run.
    """
    model, train, servers = experiment.model, experiment.train, experiment.cluster.ps
    layout = build_layout(model, servers)
    examples = train.batch * train.steps_per_push
    # Without servers nothing is pushed; the columns say what one server would get.
    pushes = bytes_per_push(layout, max(servers, 1), examples, experiment.name, train.wire_push)
    context = _context_bytes(experiment)
    layers = []
    for shape in infer(model):
        mine = [push for push in pushes if layout.tensors[push.tensor].layer == shape.index]
        parameters = sum(layout.tensors[push.tensor].size for push in mine)
        forced = [_forced(experiment, push) for push in mine]
        layers.append(
            {
                "name": shape.name,
                "type": written_type(shape.layer),
                "output_shape": list(shape.output),
                "parameters": parameters,
                "connections": shape.connections,
                "context_bytes": context.get(shape.index, 0) + parameters * ELEMENT_BYTES,
                "gradient_bytes": sum(push.gradient_bytes for push in mine),
                "factors_bytes": sum(push.factors_bytes or push.gradient_bytes for push in mine)
                if any(push.factors_bytes for push in mine)
                else None,
                "protocol": forced[0][0] if forced and servers else None,
                "push_bytes": sum(bytes_ for _, bytes_ in forced) if servers else 0,
            }
        )
    return {
        "experiment": experiment.name,
        "servers": servers,
        "batch": train.batch,
        "push_examples": examples,
        "parameters": layout.parameter_count,
        "parameters_bytes": layout.parameter_count * ELEMENT_BYTES,
        "connections": sum(layer["connections"] for layer in layers),
        "context_bytes": sum(layer["context_bytes"] for layer in layers),
        "shards": len(layout.shards),
        "buckets": len(layout.buckets),
        "layout_hash": layout.hash,
        "optimizer": experiment.optimizer.type,
        "server_bytes": servers_part(experiment, layout.parameter_count).size_bytes if servers else 0,
        "wire_push": train.wire_push,
        "push_bytes": sum(layer["push_bytes"] for layer in layers),
        "push_gradient_bytes": sum(layer["gradient_bytes"] for layer in layers),
        "layers": layers,
    }


def _forced(experiment: Experiment, push: Any) -> tuple[str, int]:
    """Returns how a tensor is pushed (by `train.protocol`) and its bytes; a tensor without factors stays a gradient."""
    wanted = experiment.push_protocol
    protocol = push.protocol if wanted == "auto" or push.factors_bytes is None else wanted
    return protocol, push.gradient_bytes if protocol == "gradient" else push.factors_bytes


def _context_bytes(experiment: Experiment) -> dict[int, int]:
    """Returns layer -> bytes of one thread's buffers for it, measured by creating them; gradients are not counted."""
    network = Network(experiment.model, experiment.train.batch)
    context = network.context()
    return {
        layer.shape.index: _bytes_of(buffers) for layer, buffers in zip(network.layers, context.buffers, strict=True)
    }


def _bytes_of(buffers: Buffers) -> int:
    arrays = (buffers.output, buffers.input_error, *buffers.scratch.values())
    return sum(prod(array.shape) * array.itemsize for array in arrays)
