"""`adamctl predict --partitions` with real processes: what each holds, and what is left when the command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from adamctl.errors import ConfigurationError
from adamctl.launch.prediction.processes import Processes, open_forward
from adamctl.launch.trained import load_trained
from adamctl.model.description import Dense, Model, Softmax
from tests.launch.prediction.checkpoints import write_checkpoint

WAIT_S = 120.0
LARGE = Model((4000,), (Dense(4000, "relu"), Dense(4000, "relu"), Dense(4000, "relu"), Softmax(10)))
LARGE_BYTES = 4 * (3 * 4001 * 4000 + 4001 * 10)


def peak_bytes(pid: int) -> int:
    """Returns the most memory that a process ever had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peaks of memory are read from /proc")
def test_no_process_ever_has_a_model_that_does_not_fit_it(tmp_path: Path) -> None:
    """This process has none of it; three others have a third each, and never more."""
    trained = load_trained(str(write_checkpoint(tmp_path / "000001", LARGE)), tmp_path)
    with pytest.raises(ConfigurationError, match="the smallest number of partitions that fits is 3"):
        open_forward(trained, Processes(memory="280MiB"))
    small = load_trained(str(write_checkpoint(tmp_path / "small", Model((4,), (Softmax(2),)))), tmp_path)
    list(open_forward(small, Processes()).outputs([np.zeros((1, 4), np.float32)]))  # loads what computes
    before = psutil.Process().memory_info().rss
    forward = open_forward(trained, Processes(3, 1, "280MiB"))
    examples = np.random.default_rng(1).standard_normal((64, 4000)).astype(np.float32)
    parts = [examples[start : start + forward.batch] for start in range(0, len(examples), forward.batch)]
    outputs = np.concatenate(list(forward.outputs(parts)))
    peaks = [peak_bytes(pid) for pid in forward.pids]  # type: ignore[attr-defined]
    assert max(peaks) <= 280 << 20, [peak >> 20 for peak in peaks]
    assert psutil.Process().memory_info().rss - before < LARGE_BYTES / 4
    forward.close()
    whole = np.concatenate(list(open_forward(trained, Processes()).outputs([examples])))
    np.testing.assert_allclose(outputs, whole, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_nothing_is_left_of_a_command_that_is_interrupted_or_killed(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    folder = write_checkpoint(tmp_path / "000001", Model((1000,), (Dense(3000, "relu"), Dense(3000), Softmax(10))))
    np.savez(tmp_path / "many.npz", x=np.zeros((100_000, 1000), np.uint8))
    line = (sys.executable, "-m", "adamctl", "predict", str(folder), str(tmp_path / "many.npz"), "--partitions", "2")
    with subprocess.Popen((*line, "--csv"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path) as command:
        assert command.stdout is not None
        assert command.stdout.readline().startswith(b"image,") and command.stdout.readline()
        children = psutil.Process(command.pid).children()
        assert len(children) == 2
        os.kill(command.pid, number)
        command.communicate(timeout=WAIT_S)
        assert command.returncode == code
    until_s = time.monotonic() + WAIT_S
    while any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children):
        assert time.monotonic() < until_s, "a process outlived its command"
        time.sleep(0.05)
