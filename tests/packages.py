"""Somebody else's package, written into a folder as pip would install it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install(folder: Path, package: str, modules: Mapping[str, str], group: str, points: Mapping[str, str]) -> None:
    """Writes a package that is found once `folder` is in `sys.path`.

    Args:
        package: its name, as it is imported.
        modules: name -> text of its files.
        group, points: its entry points, name -> what they name.
    """
    code, information = folder / package, folder / f"{package}-1.0.dist-info"
    code.mkdir(parents=True)
    information.mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (code / f"{name}.py").write_text(text)
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n"
    )  # fmt: skip
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (information / "entry_points.txt").write_text("\n".join(lines))


def use(
    folder: Path,
    package: str,
    modules: Mapping[str, str],
    group: str,
    points: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Installs a package, as `install`, for one test, which finds it not loaded yet."""
    install(folder, package, modules, group, points)
    monkeypatch.syspath_prepend(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
