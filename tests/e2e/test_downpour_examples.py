"""The examples for other frameworks, as their first lines say to run them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.cluster_for_tests import TOKEN, running_cluster
from tests.e2e.conftest import EXAMPLES


def run(*arguments: str, timeout_s: float) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "ADAMCTL_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_numpy_processes_solve_least_squares_together(tmp_path: Path) -> None:
    with running_cluster(tmp_path, servers=1) as address:
        text = run(
            str(EXAMPLES / "numpy_downpour.py"), f"adam://{address}/least-squares", "--steps", "400", timeout_s=120
        )
    found = re.search(r"largest error of x: (\S+)", text)
    assert found and float(found[1]) < 0.1, text


@pytest.mark.slow
def test_pytorch_processes_train_mnist_together(tmp_path: Path, mnist_folder: Path) -> None:
    pytest.importorskip("torch")
    data = str(mnist_folder / "mnist")
    with running_cluster(tmp_path, servers=1) as address:
        url = f"adam://{address}/mnist"
        text = run(str(EXAMPLES / "torch_downpour.py"), url, "--data", data, "--passes", "2", timeout_s=600)
    found = re.search(r"test accuracy (\S+)", text)
    assert found and float(found[1]) > 0.97, text
