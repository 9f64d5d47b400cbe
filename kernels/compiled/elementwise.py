"""Bias, activation and their backward, each in one pass. Codes are `adamctl.kernels.layers.activations.CODES`."""

from __future__ import annotations

from typing import Any

import numpy as np

from adamctl.kernels.compiled.curves import RELU, SIGMOID, TANH, add_and_apply_curve
from adamctl.kernels.compiled.jit import IN1, IN2, OUT1, OUT2, i64, inline, kernel


@kernel((OUT2, IN1, i64))
def add_bias(outputs: Any, bias: Any, code: int) -> None:
    """outputs [rows, units] = f(outputs + bias), f being the activation with that code."""
    rows, units = outputs.shape
    flat = outputs.reshape(rows * units)
    zero = np.float32(0)
    if code == RELU:
        for row in range(rows):
            for unit in range(units):
                value = outputs[row, unit] + bias[unit]
                outputs[row, unit] = zero if value < zero else value
    elif code in (TANH, SIGMOID):
        for row in range(rows):
            add_and_apply_curve(flat, row * units, units, bias, code)
    else:
        for row in range(rows):
            for unit in range(units):
                outputs[row, unit] += bias[unit]


@inline
def scale(outputs: Any, error: Any, code: int) -> None:
    rows, units = error.shape
    zero, one = np.float32(0), np.float32(1)
    if code == RELU:
        for row in range(rows):
            for unit in range(units):
                error[row, unit] = zero if outputs[row, unit] <= zero else error[row, unit]
    elif code == TANH:
        for row in range(rows):
            for unit in range(units):
                error[row, unit] *= one - outputs[row, unit] * outputs[row, unit]
    elif code == SIGMOID:
        for row in range(rows):
            for unit in range(units):
                error[row, unit] *= outputs[row, unit] * (one - outputs[row, unit])


@kernel((IN2, OUT2, i64))
def activation_error(outputs: Any, error: Any, code: int) -> None:
    """error *= f'(outputs), both [rows, units]."""
    scale(outputs, error, code)


@kernel((IN2, OUT2, i64, OUT1))
def activation_error_and_sum(outputs: Any, error: Any, code: int, bias_gradient: Any) -> None:
    """error *= f'(outputs); bias_gradient [units] = sum of error over rows."""
    scale(outputs, error, code)
    rows, units = error.shape
    for unit in range(units):
        bias_gradient[unit] = 0
    for row in range(rows):
        for unit in range(units):
            bias_gradient[unit] += error[row, unit]
