"""`bench soak`: what the picture at its end needs is looked for before it begins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError


def test_without_matplotlib_it_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("adamctl.bench.soak.soak.run_soak", lambda *given: pytest.fail("it began"))
    error = CliRunner().invoke(application, ["bench", "soak", "--folder", str(tmp_path)]).exception
    assert isinstance(error, ConfigurationError) and "pictures need matplotlib" in str(error)
