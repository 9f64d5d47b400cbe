"""A run whose data are behind a URL: fetched by the data server, from the one address that the run names."""

from __future__ import annotations

import functools
import http.server
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Runner
from tests.roles.data.prepared.sets import prepared
from tests.web import WebServer

EXPERIMENT = """\
name = "far"
[data]
format = "prepared"
source = "{url}/set"
disk_cache = "10MB"
[model]
input = [4, 3, 1]
[[model.layers]]
type = "dense"
units = 8
[[model.layers]]
type = "softmax"
units = 3
[train]
batch = 20
passes = 2
warmstart_steps = 0
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The address of a web server of this machine, which has a prepared set."""
    (tmp_path / "web").mkdir()
    prepared(tmp_path / "web" / "set")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "web"))
    with WebServer(handler) as server:
        yield server.url.removesuffix("/")


@pytest.mark.slow
def test_it_trains_and_keeps_what_it_fetched(
    adamctl: Runner, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADAMCTL_CACHE", str(tmp_path / "cache"))
    (adamctl.folder / "exp.toml").write_text(EXPERIMENT.format(url=url))
    code, stdout, stderr = adamctl.run("train", "exp.toml", "--json", "--threads", "1")
    assert code == 0, stderr
    assert json.loads(stdout)["examples"] == 2 * 3000
    sizes = sorted(path.stat().st_size for path in (tmp_path / "cache" / "data").glob("*/data/file"))
    assert 36_000 in sizes and 12_000 in sizes


@pytest.mark.slow
def test_what_is_not_there_ends_the_run_at_once_with_its_address(adamctl: Runner, url: str) -> None:
    (adamctl.folder / "exp.toml").write_text(EXPERIMENT.format(url=f"{url}/none"))
    code, _, stderr = adamctl.run("train", "exp.toml", "--threads", "1")
    assert code == 2 and f"{url}/none/set" in stderr, stderr
