"""The process that compiles what it is told, kernel by kernel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.kernels import backend, kernel_cache

pytestmark = pytest.mark.skipif("numba" not in backend.installed(), reason="needs numba")


def compile_ahead(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "adamctl.kernels.compile_ahead"]
    environment = {**os.environ, kernel_cache.VARIABLE: str(folder)}
    return subprocess.run(line, input=text, capture_output=True, text=True, env=environment, timeout=120)


def test_each_kernel_is_named_when_it_is_in_the_cache(tmp_path: Path) -> None:
    done = compile_ahead(tmp_path, "rules.address\ntiles.listed:5\n")
    assert (done.stdout.split(), done.returncode) == (["rules.address", "tiles.listed:5"], 0)
    (folder,) = tmp_path.glob(f"{kernel_cache.PREFIX}*")
    assert sorted(path.name for path in folder.glob("*.compiled")) == [
        "rules.address.compiled",
        "tiles.listed-5.compiled",
    ]
    assert len(list(folder.glob("rules.address-*.nbi"))) == 1


def test_one_that_there_is_not_ends_it(tmp_path: Path) -> None:
    done = compile_ahead(tmp_path, "rules.none\nrules.address\n")
    assert not done.stdout
    assert "expected the name of a kernel; found 'rules.none'" in done.stderr
