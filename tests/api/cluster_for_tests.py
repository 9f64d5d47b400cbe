"""A small cluster of real processes on loopback for tests: a controller, and whoever joins it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import adamctl as adam

TOKEN = "a secret"


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "adamctl", *arguments, "--port", "0"],
        env={**os.environ, "ADAMCTL_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    """Reads the line that a role started by hand prints when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"ready on tcp://(\S+?)(,|$)", line.strip())
    assert found, line
    return found[1]


def client(url: str, **options: Any) -> adam.ParameterClient:
    return adam.ParameterClient(url, **{"token": TOKEN, "deadline_s": 60.0} | options)


def running_cluster(folder: Path, servers: int = 2) -> AbstractContextManager[str]:
    """Yields the controller's address; ends all processes afterwards."""
    names = (f"ps-{number}" for number in range(servers))
    return cluster_of(folder, *(("ps", "start", "--name", name, "--apply-threads", "1") for name in names))


@contextmanager
def cluster_of(folder: Path, *members: Sequence[str]) -> Iterator[str]:
    """Yields the address of a controller whose cluster these commands have joined; ends all processes afterwards."""
    processes = [start("controller", "start", "--dir", str(folder / "controller"))]
    try:
        address = address_of(processes[0])
        processes += [start(*member, "--controller", address) for member in members]
        for process in processes[1:]:
            address_of(process)
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.communicate(timeout=120)
