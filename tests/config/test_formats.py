"""Formats of data: ours are known without a search, those of other packages by their entry points alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adamctl.config import formats
from adamctl.errors import ConfigurationError
from adamctl.plugins import PluginGroup
from tests.config.small_network import load
from tests.roles.data.readers import third_party


def test_our_own_formats_are_known_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PluginGroup, "installed", lambda group: pytest.fail("it searched the installed packages"))
    assert all(formats.is_format(name) for name in formats.BUILT_IN)


def test_a_format_of_another_package_is_known_without_loading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_party.use(tmp_path, monkeypatch)
    found = load(tmp_path, 'data.format="broken"', 'data.source="./x"')
    assert found.data.format == "broken"
    assert "lines_package" not in sys.modules


def test_an_unknown_format_is_refused_with_all_there_are_and_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    third_party.use(tmp_path, monkeypatch)
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, environment={"ADAMCTL_DATA__FORMAT": "liens"})
    allowed = ", ".join(f'"{name}"' for name in (*formats.BUILT_IN, *third_party.NAMES))
    said = f'data.format: found "liens"; expected one of {allowed}. Did you mean "lines"?'
    assert str(caught.value) == f"ADAMCTL_DATA__FORMAT: {said}"
