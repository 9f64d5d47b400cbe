"""Files and folders on the command line, checked before any work begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click


class Folder(click.Path):
    """A folder that exists on this machine; `~` is the user's, also where the shell has left it as it is."""

    def __init__(self) -> None:
        super().__init__(file_okay=False)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        path = Path(value).expanduser()
        if not path.is_dir():
            self.fail(f"expected an existing folder; found {value}", parameter, context)
        return str(path)


class Picture(click.Path):
    """A file that a picture can be written to, checked before anything is measured."""

    ENDINGS = (".svg", ".png", ".pdf")

    def __init__(self) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        path = Path(value)
        if path.suffix.lower() not in self.ENDINGS:
            endings = ", ".join(self.ENDINGS)
            self.fail(f"expected a name that ends in one of {endings}; found {value}", parameter, context)
        if not path.absolute().parent.is_dir():
            self.fail(f"expected a file in an existing folder; found {value}", parameter, context)
        if importlib.util.find_spec("matplotlib") is None:
            self.fail("pictures need matplotlib; pip install 'adamctl[plot]'", parameter, context)
        super().convert(value, parameter, context)
        return path
