"""Whole runs as a user starts them: real processes, real sockets, on loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"


def files_named(folder: Path, name: str) -> list[Path]:
    """Returns the files of this name below a folder. Unlike `rglob`, it takes folders that vanish meanwhile."""
    return [Path(place) / name for place, _, names in os.walk(folder) if name in names]


@dataclass
class Command:
    """One `adamctl` command under way."""

    process: subprocess.Popen[str]
    folder: Path
    marker: str

    def wait(self, timeout_s: float = 300.0) -> tuple[int, str, str]:
        """Returns (exit code, stdout, stderr); kills everything and fails if it takes too long."""
        try:
            stdout, stderr = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            stdout, stderr = self.process.communicate()
            pytest.fail(f"no end within {timeout_s} s\n{stdout}\n{stderr}")
        return self.process.returncode, stdout, stderr

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def roles(self, role: str) -> list[psutil.Process]:
        """Returns the processes of a role of this run, by name of the node."""
        return sorted(
            (process for process in self.family() if f" {role} start" in " ".join(process.cmdline())),
            key=lambda process: process.pid,
        )

    def family(self) -> list[psutil.Process]:
        """Every living process that was started by this command (its environment carries the marker)."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("ADAMCTL_TEST_MARKER") == self.marker and process.status() != "zombie":
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process for process in found if process.pid != self.process.pid]

    def wait_until(self, condition: Callable[[], Any], timeout_s: float = 180.0) -> Any:
        """Returns the first true value of `condition`; fails if the command ends first or time runs out."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None:
                stdout, stderr = self.process.communicate()
                pytest.fail(f"ended with {self.process.returncode} meanwhile\n{stdout}\n{stderr}")
            time.sleep(0.02)
        pytest.fail(f"not within {timeout_s} s: {condition}")

    def trained(self) -> bool:
        """Says whether training has begun: the run's metrics hold a line that counts examples."""
        for metrics in files_named(self.folder, "metrics.jsonl"):
            for line in metrics.read_text().splitlines():
                record = json.loads(line)
                if record.get("examples", 0) > 0 or record.get("train_seconds", 0) > 0:
                    return True
        return False


@dataclass
class Runner:
    """Starts `adamctl` commands in a folder and ends them all afterwards."""

    folder: Path
    commands: list[Command] = field(default_factory=list)

    def start(self, *arguments: str | Path, **environment: str) -> Command:
        return self.start_program(sys.executable, "-m", "adamctl", *arguments, **environment)

    def start_program(self, *line: str | Path, **environment: str) -> Command:
        """Starts another program likewise."""
        marker = f"{self.folder}-{len(self.commands)}"
        environment = {"ADAMCTL_CHECKPOINT_ROOT": str(self.folder), **environment}
        process = subprocess.Popen(
            [*map(str, line)],
            cwd=self.folder,
            env={**os.environ, "ADAMCTL_TEST_MARKER": marker, "NO_COLOR": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.commands.append(Command(process, self.folder, marker))
        return self.commands[-1]

    def run(self, *arguments: str | Path, timeout_s: float = 300.0, **environment: str) -> tuple[int, str, str]:
        return self.start(*arguments, **environment).wait(timeout_s)

    def close(self) -> Sequence[str]:
        left = []
        for command in self.commands:
            for process in command.family():
                left.append(" ".join(process.cmdline()))
                process.kill()
            if command.process.poll() is None:
                command.process.kill()
                command.process.communicate()
        return left


@pytest.fixture
def adamctl(tmp_path: Path) -> Iterator[Runner]:
    """Runs commands in a fresh folder; at the end nothing may be left of them."""
    runner = Runner(tmp_path)
    yield runner
    living = [one for one in runner.commands if one.process.poll() is None and not one.process.stdout.closed]
    for some in (living[1:], living[:1]):  # the first may be a controller, which others take leave of
        for command in some:
            command.process.terminate()
        for command in some:
            command.wait(90)
    left = runner.close()
    assert not left, f"processes left behind: {left}"


@pytest.fixture
def mnist_folder() -> Path:
    """The folder that ADAMCTL_DATA names, if MNIST is in it."""
    for folder in os.environ.get("ADAMCTL_DATA", "").split(os.pathsep):
        if folder and (Path(folder) / "mnist").is_dir():
            return Path(folder)
    pytest.skip("MNIST is not there: adamctl data fetch mnist --data DIR, then ADAMCTL_DATA=DIR")
