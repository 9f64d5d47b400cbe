"""`adamctl version`: the versions that a bug report should name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from adamctl import __version__
from adamctl.cli import options
from adamctl.cli.output import echo, print_json

_PACKAGES = ("numpy", "numba", "lmdb", "msgspec", "uvloop")


@click.command("version")
@options.json_option
def command(as_json: bool) -> None:
    """Show the versions of adamctl, Python and the packages it computes with."""
    versions = {"adamctl": __version__, "python": platform.python_version(), **_installed()}
    if as_json:
        print_json({"version": __version__, "versions": versions, "platform": platform.platform()})
        return
    echo(f"adamctl {__version__}")
    echo(f"python {versions['python']}, {', '.join(f'{name} {found}' for name, found in _installed().items())}")
    echo(platform.platform())


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
