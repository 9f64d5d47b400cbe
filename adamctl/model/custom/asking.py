"""Calls what users write, and says where it failed in their own file."""

from __future__ import annotations

import inspect
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
        raise CustomError(f"{where}: {type(error).__name__}: {error} ({_line(method, error)})") from error


def _line(method: Callable[..., Any], error: Exception) -> str:
    """Returns the line of the method's own file that was reached last, since the last of all may be a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    code = getattr(inspect.unwrap(method), "__code__", None)
    if code is None:
        return f"{frames[-1].filename}:{frames[-1].lineno}"
    lines = [frame.lineno for frame in frames if frame.filename == code.co_filename]
    return f"{code.co_filename}:{lines[-1] if lines else code.co_firstlineno}"
