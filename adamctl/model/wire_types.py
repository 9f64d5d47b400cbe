"""What the numbers of pushes and pulls travel as: float32, or one of two 16-bit formats that halve the bytes."""

from __future__ import annotations

from typing import Literal, get_args

WireType = Literal["float32", "bfloat16", "float16"]
WIRE_TYPES: tuple[WireType, ...] = get_args(WireType)
WIRE_ELEMENT_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def of_factors(wire: WireType) -> WireType:
    """Returns what factors travel as where gradients travel as `wire`.

    Their rounding errors cannot be made good by a later push, so what is too small for float16 would be lost for good
    (errors divided by a batch are easily below its 6e-8): factors of 16 bits are always bfloat16, with float32's range.
    """
    return "float32" if wire == "float32" else "bfloat16"


def not_known(found: str) -> str:
    """Returns what to say of a name that is none of `WIRE_TYPES`."""
    return f"expected dtype {', '.join(WIRE_TYPES[:-1])} or {WIRE_TYPES[-1]}; found {found[:40]!r}; use one of these"
