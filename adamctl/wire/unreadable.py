"""The exceptions that decoding untrusted bytes may raise: all code that decodes such bytes catches this list.

`msgspec.DecodeError` is not enough: text that is not UTF-8 raises `UnicodeDecodeError`, and endlessly nested lists
raise `RecursionError`.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)

__all__ = ["UNREADABLE"]
