"""Control groups for processor time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.bench import quota
from adamctl.bench.quota import PERIOD_US, quotas
from adamctl.errors import ConfigurationError


def _groups() -> Path:
    try:
        with quotas():
            return next(root / f"adamctl-bench-{os.getpid()}" for root in quota.ROOTS if root.exists())
    except ConfigurationError:
        pytest.skip("needs a control group for processor time that this user may write to")


def test_a_process_gets_its_share_and_nothing_is_left() -> None:
    folder = _groups()
    assert not folder.exists()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with quotas() as made:
            made.put("one", child.pid, 0.4)
            group = folder / "one"
            assert (group / "cgroup.procs").read_text().split() == [str(child.pid)]
            if (group / "cpu.max").exists():
                assert (group / "cpu.max").read_text().split() == ["4000", str(PERIOD_US)]
            else:
                assert (group / "cpu.cfs_quota_us").read_text().strip() == "4000"
            child.communicate(b"\n")
    finally:
        child.kill()
    assert not folder.exists()


def test_without_a_folder_that_can_be_written_the_flag_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(quota, "ROOTS", (tmp_path / "none", tmp_path))
    with pytest.raises(ConfigurationError, match=r"--quota: expected a control group .* leave --quota out"), quotas():
        pass
    assert list(tmp_path.iterdir()) == []
