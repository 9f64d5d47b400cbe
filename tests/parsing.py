"""Sources as syntax trees, whatever earlier tests have left to the garbage collector."""

from __future__ import annotations

import ast
import gc
from pathlib import Path


def parsed(path: Path) -> ast.Module:
    """Returns a file's tree.

    Python 3.11 counts the depth of a tree wrongly, and says so by SystemError, if the collector runs another's code
    while the tree is made (python/cpython 106905). So it waits.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        if collects:
            gc.enable()
