"""Types of pushed and pulled numbers on the wire: float32, or one of two 16-bit formats that halve the bytes."""

from __future__ import annotations

from typing import Literal, get_args

WireType = Literal["float32", "bfloat16", "float16"]
WIRE_TYPES: tuple[WireType, ...] = get_args(WireType)
WIRE_ELEMENT_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}


def of_factors(wire: WireType) -> WireType:
    """Returns the wire type of factors when gradients are sent as `wire`.

    A later push cannot correct their rounding errors, so values too small for float16 would be lost for good (errors
    divided by the batch size are easily below its 6e-8): 16-bit factors are always bfloat16, with float32's range.
    """
    return "float32" if wire == "float32" else "bfloat16"


def not_known(found: str) -> str:
    """Returns the error text for a name that is not in `WIRE_TYPES`."""
    return f"expected dtype {', '.join(WIRE_TYPES[:-1])} or {WIRE_TYPES[-1]}; found {found[:40]!r}; use one of these"
