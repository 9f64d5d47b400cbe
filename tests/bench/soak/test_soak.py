"""Two minutes of a soak, interrupted once by kill -9: it goes on where it was, and nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from adamctl.bench.soak.record import FAULTS, SAMPLES, Record
from adamctl.bench.soak.soak import SoakSettings, resident_mib, run_soak
from adamctl.errors import ConfigurationError

SECONDS, EVERY_S = 110.0, 10.0
STARTED_S, ENDED_S = 120.0, 600.0


def test_resident_memory_is_read_from_what_prometheus_gets() -> None:
    text = (
        "# HELP adamctl_process_resident_memory_bytes Memory of the process in RAM.\n"
        'adamctl_process_resident_memory_bytes{node="ps-1",role="ps"} 1.048576e+06\n'
        'adamctl_node_up{node="ps-1",role="ps"} 1.0\n'
    )
    assert resident_mib(text) == {"ps-1": 1.0}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"--folder .*/file/soak: cannot be made: Not a directory"):
        run_soak(SoakSettings(tmp_path / "file" / "soak", 60.0), print)


def soak(folder: Path) -> subprocess.Popen[str]:
    flags = ("--hours", str(SECONDS / 3600), "--every", str(EVERY_S), "--folder", str(folder), "--json")
    line = [sys.executable, "-m", "adamctl", "bench", "soak", *flags]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder.parent)


def began_faults(folder: Path, count: int) -> bool:
    return len(list(Record(folder).lines(FAULTS))) >= count


@pytest.mark.slow
def test_a_soak_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "soak"
    first = soak(folder)
    children: list[psutil.Process] = []
    try:
        until_s = time.monotonic() + STARTED_S
        while not began_faults(folder, 2):
            assert first.poll() is None and time.monotonic() < until_s, first.communicate()
            time.sleep(0.2)
        children = psutil.Process(first.pid).children(recursive=True)
        assert len(children) >= 6
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    _, left = psutil.wait_procs(children, timeout=60)
    assert not left, "no process outlives the soak"
    before = Record(folder).state()
    assert before is not None and before.starts == 1 and not before.done

    second = soak(folder)
    try:
        out, err = second.communicate(timeout=ENDED_S)
    finally:
        second.kill()
    assert second.returncode == 0, err
    assert "going on after" in err and "what was pushed before is there" in err
    (result,) = json.loads(out)["results"]
    assert result["starts"] == 2 and result["pushes_lost"] == 0
    assert result["faults"] >= 4 and result["pushes_acknowledged"] > 50
    assert result["minutes"] * 60 == pytest.approx(SECONDS, abs=60), "both starts together"
    assert len(list(Record(folder).lines(SAMPLES))) >= 5
    for name in ("soak.png", "soak.svg"):
        assert os.path.getsize(folder / name) > 10_000
    again = soak(folder)
    assert "is over" in again.communicate(timeout=STARTED_S)[1] and again.returncode == 2
