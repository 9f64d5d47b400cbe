"""What decoding bytes from outside may raise, whatever they hold: the list that everything catches which decodes them.

`msgspec.DecodeError` is not all of it: text that is not UTF-8 raises `UnicodeDecodeError`, and lists in lists without
end raise `RecursionError`.
"""

from __future__ import annotations

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)

__all__ = ["UNREADABLE"]
