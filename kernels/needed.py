"""The names of the compiled kernels that a run uses, from its description alone, to compile before its roles start.

A name is `module.function` of `adamctl.kernels.compiled`, or `tiles.KIND:SIZE` for the tiles that cover an axis of
SIZE elements. Kernels missing here are still compiled, on first use.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from adamctl.model import description
from adamctl.model.custom.loss import custom_loss, has_native, is_custom_loss
from adamctl.model.description import Model, pair
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.model.shapes import LayerShape, infer
from adamctl.model.wire_types import WireType

_SLOW = {"direct.backward": 9, "convolution.backward": 8, "convolution.forward": 6, "direct.forward": 5}
"""How long these kernels take to compile, relative to others: the slowest go first."""

COMMON_KERNELS = ("elementwise.activation_error_and_sum", "accrual.fill_or_add_and_apply", "accrual.fill_or_add",
                "accrual.accrue_and_apply", "accrual.subtract_scaled", "accrual.install")  # fmt: skip
"""Kernels that training steps of any model use."""
COMMON_RULE_KERNELS = ("rules.address", "rules.all_finite")
"""Kernels that updates by any rule use."""
ROUND_KERNELS = ("rounds.run", "rounds.accumulate", "rounds.largest_bits", "rules.address")
"""Kernels that servers use for commands on vectors and the gradients they are about, the slowest first."""
WARP_KERNELS = ("warp.warp", "warp.uniform_pairs")
"""Kernels that data servers use to warp images, and to draw what is left to chance."""
_OF_LOSS = {
    "cross_entropy": ("losses.bias_softmax", "losses.cross_entropy", "losses.cross_entropy_error"),
    "squared_error": ("losses.squared_error", "losses.squared_error_error"),
    "logistic": ("logistic.logistic", "logistic.logistic_error"),
    "mean_squared_error": ("losses.mean_squared_error", "losses.mean_squared_error_error"),
}
"""The last makes the error; `weighted_losses` has one of the same name where the loss takes labels."""
_OF_OWN_LOSS = {"labels": ("losses.safe_labels", "losses.sum_with_labels"), "targets": ("losses.sum_with_targets",)}
"""By what a loss of the user's own with native calls compares."""
_OF_LAYER: dict[type, tuple[str, ...]] = {
    description.MaxPool2D: ("images.maxpool_forward", "images.maxpool_backward"),
    description.Custom: ("regions.copy_block", "regions.clear"),
    description.Dense: ("elementwise.add_bias",),
    description.Dropout: ("dropout.drop", "dropout.drop_error"),
    description.Local2D: ("elementwise.add_bias", "local.unfold_places", "local.fold_places"),
    description.L2Pool2D: ("local.l2pool_forward", "local.l2pool_backward"),
    description.LocalContrastNorm: (
        "contrast.mean_of_maps", "contrast.mean_square", "contrast.divide", "contrast.square_error",
        "contrast.centred_error", "contrast.subtract_mean_error",
    ),
    description.Logistic: ("elementwise.add_bias",),
    description.Softmax: ("losses.bias_softmax",),
}  # fmt: skip


def step_kernels(model: Model, clipping: bool = False, weighted: bool = False) -> tuple[str, ...]:
    """Returns the kernels that training steps and evaluations of a model use, slowest to compile first.

    `clipping`: gradients are clipped; `weighted`: classes have weights.

    Raises:
        ConfigurationError: the model's layers do not fit together.
    """
    names = {*COMMON_KERNELS, *_of_loss(model), *(("accrual.clip_layers",) if clipping else ())}
    if weighted:
        plain = _OF_LOSS[model.loss][-1]
        names.remove(plain)
        names.add(f"weighted_losses.{plain.partition('.')[2]}")
    shapes = infer(model)
    if isinstance(model.layers[-1], description.Softmax) and model.loss != "cross_entropy":
        names.add("losses.softmax_error")
    pooled = False
    for shape, following in zip(shapes, (*shapes[1:], None), strict=True):
        layer = shape.layer
        if pooled:  # this pooling is fused into the convolution before it
            pooled = False
        elif isinstance(layer, description.Conv2D):
            pooled = following is not None and does_pooling(layer, following.layer)
            names |= _of_convolution(shape, layer, pooled)
        else:
            names |= set(_OF_LAYER[type(layer)])
    return _longest_first(names)


def _of_loss(model: Model) -> tuple[str, ...]:
    if not is_custom_loss(model.loss):
        return _OF_LOSS[model.loss]
    return _OF_OWN_LOSS[custom_loss(model.loss).answers] if has_native(model.loss) else ()


def does_pooling(convolution: description.Layer, following: description.Layer) -> bool:
    """Whether a convolution and the layer after it are one kernel: less work if not every pixel can win."""
    if not isinstance(convolution, description.Conv2D) or convolution.groups != 1:
        return False
    if not isinstance(following, description.MaxPool2D):
        return False
    return prod(pair(following.size if following.stride is None else following.stride)) > 1


def _of_convolution(shape: LayerShape, layer: description.Conv2D, pooled: bool) -> set[str]:
    channels, filters = shape.input[2] // layer.groups, layer.filters // layer.groups
    taps = pair(layer.kernel)[1] * channels
    if pooled:
        return {"convolution.forward", "convolution.backward", f"tiles.sums:{filters}", f"tiles.listed:{taps}"}
    return {
        "direct.forward", "direct.backward", f"tiles.sums:{filters}", f"tiles.products:{taps}", f"tiles.sums:{channels}"
    }  # fmt: skip


def rule_kernels(rule: RuleConfig) -> tuple[str, ...]:
    """Returns the kernels that a parameter server uses for jobs with this rule."""
    if rule.name == VECTORS:
        return ROUND_KERNELS
    name = "nesterov" if rule.name == "momentum" and rule.nesterov else rule.name
    of_rule = {f"rules.{name}", f"factors.{name}", *COMMON_RULE_KERNELS}
    return _longest_first({*of_rule, "factors.pack_activations", "factors.pack_errors"})


def conversion_kernels(wires: Iterable[WireType]) -> tuple[str, ...]:
    """Returns the kernels that both ends use for these wire types."""
    narrow = sorted({wire for wire in wires if wire != "float32"})
    made = [f"conversions.{what}_{wire}" for wire in narrow for what in ("to", "from", "feedback")]
    return (*made, "conversions.all_below") if made else ()


def _longest_first(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names), key=lambda name: (-_SLOW.get(name, 1), name)))
