"""Control groups: shares of cores, limits of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adamctl.bench import control_groups as module
from adamctl.bench.control_groups import PERIOD_US, SHARES, WEIGHT, Controller, control_groups, quotas
from adamctl.errors import ConfigurationError


def _folder(controller: Controller) -> Path:
    with control_groups(controller) as made:
        if made is None:
            pytest.skip(f"needs a control group for {controller} that this user may write to")
        name = f"adamctl-bench-{os.getpid()}"
        return next(root / name for root in (module.ROOT / controller, module.ROOT) if (root / name).exists())


@pytest.mark.parametrize("controller", ["cpu", "memory"])
def test_a_process_gets_its_share_and_nothing_is_left(controller: Controller) -> None:
    folder = _folder(controller)
    assert not folder.exists()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        with control_groups(controller) as made:
            assert made is not None
            group = folder / "one"
            if controller == "cpu":
                made.share_cores("one", child.pid, 0.4, before_others=True)
                expected = {
                    "cpu.max": f"4000 {PERIOD_US}", "cpu.weight": str(WEIGHT),
                    "cpu.cfs_quota_us": "4000", "cpu.shares": str(SHARES),
                }  # fmt: skip
            else:
                made.limit_memory("one", child.pid, 1 << 30)
                expected = dict.fromkeys(("memory.max", "memory.limit_in_bytes"), str(1 << 30))
            assert (group / "cgroup.procs").read_text().split() == [str(child.pid)]
            found = {name: (group / name).read_text().strip() for name in expected if (group / name).exists()}
            assert len(found) in (1, 2) and found.items() <= expected.items()
            child.communicate(b"\n")
    finally:
        child.kill()
    assert not folder.exists()


def test_a_process_may_be_given_another_share() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    folder = _folder("cpu")
    try:
        with control_groups("cpu") as made:
            assert made is not None
            for cores in (1.0, 0.2):
                made.give(child.pid, cores)
            groups = {
                path.name: (path / "cgroup.procs").read_text().split() for path in folder.iterdir() if path.is_dir()
            }
            assert groups == {"1": [], "2": [str(child.pid)]}
            child.communicate(b"\n")
    finally:
        child.kill()
    assert not folder.exists()


def test_without_a_folder_that_can_be_written_the_flag_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "ROOT", tmp_path)
    with pytest.raises(ConfigurationError, match=r"--quota: expected a control group .* leave --quota out"), quotas():
        pass
    assert list(tmp_path.iterdir()) == []
