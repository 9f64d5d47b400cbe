"""What a run without a terminal tells the command that started it, and its log."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from adamctl.cli.run.train import _report
from adamctl.launch.detaching import Announcing, start_detached
from adamctl.launch.front import Outcome
from adamctl.launch.train import TrainOptions


class Log(io.StringIO):
    """A stream on a disk that may be full."""

    full = False

    def flush(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_under_its_log_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(sys, "stderr", log)
    read, write = os.pipe()
    announcing = Announcing(write)
    try:
        log.full = True
        announcing.note("worker-1 ended: killed by SIGKILL; restarting it")
        log.full = False
        announcing.note("there is room again")
    finally:
        announcing.close()
        os.close(read)
    assert log.getvalue().endswith("there is room again\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_full_disk_under_its_log_does_not_change_how_it_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log_format: str
) -> None:
    log = Log()
    log.full = True
    monkeypatch.setattr(sys, "stderr", log)
    outcome = Outcome(None, 3, "ps-1: the run failed")
    assert _report(outcome, tmp_path, "none", TrainOptions((), "none", tmp_path, {}), log_format) == 3


def test_a_run_that_is_killed_while_it_starts_ends_with_the_exit_code_of_the_signal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -KILL $$\n")
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    assert start_detached(["train", "small.toml"]).exit_code == 137
