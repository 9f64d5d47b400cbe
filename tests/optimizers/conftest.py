"""Fixtures of tests of batch algorithms."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.optimizers import third_party


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which somebody else's package is installed, for this test."""
    third_party.use(tmp_path, monkeypatch)
    return tmp_path
