"""Calls what users write, and says where it failed in their own file."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

from adamctl.errors import CustomError


def ask(where: str, method: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a method of the user's own does.

    Raises:
        CustomError: it failed; the message says `where`, why, and in which line.
    """
    try:
        return method(*arguments)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise CustomError(f"{where}: {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})") from error
