"""Finds a tensor of a layout by its name."""

from __future__ import annotations

from adamctl.model.layout import ParameterLayout, Tensor


def tensor_named(layout: ParameterLayout, name: str) -> Tensor:
    return next(tensor for tensor in layout.tensors if tensor.name == name)
