"""Control groups that give processes a share of a core, as machines that are slower than this one. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from adamctl.errors import ConfigurationError

ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
"""Where version 1 has its groups for processor time, and version 2 all of them."""
PERIOD_US = 10_000
"""A process runs for a part of each 10 ms. With 5 ms it does 0.95 of the work that it is due, since it is stopped more
often; with the usual 100 ms it would stand still for as long as a whole stage of a network takes, or not at all."""
CORES_LEAST = 0.1
"""A thousandth of a second of each period: the kernel takes nothing shorter."""


@contextmanager
def quotas() -> Iterator[Quotas]:
    """Yields a folder of control groups, and removes it.

    Raises:
        ConfigurationError: none can be made here.
    """
    made = next(filter(None, map(_made_folder, ROOTS)), None)
    if made is None:
        raise ConfigurationError(
            "--quota: expected a control group for processor time that this user may write to (cgroup v1 cpu, or v2); "
            f"found none under {' or '.join(map(str, ROOTS))}: leave --quota out, or run as a user who may"
        )
    try:
        yield Quotas(made)
    finally:
        for group in (*(path for path in made.iterdir() if path.is_dir()), made):
            with suppress(OSError):  # a process that is still ending holds its group
                group.rmdir()


class Quotas:
    """Groups by name; `quotas` makes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, name: str, pid: int, cores: float) -> None:
        """Gives a process, with all its threads, so many cores together; at least CORES_LEAST."""
        group = self._folder / name
        group.mkdir()
        allowed_us = round(cores * PERIOD_US)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{allowed_us} {PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(allowed_us))
        (group / "cgroup.procs").write_text(str(pid))


def _made_folder(root: Path) -> Path | None:
    folder = root / f"adamctl-bench-{os.getpid()}"
    try:
        folder.mkdir()
        if not (folder / "cpu.cfs_quota_us").exists():  # version 2: what groups below may limit is said above them
            if "cpu" not in (folder / "cgroup.controllers").read_text().split():
                raise FileNotFoundError("no groups for processor time")
            (folder / "cgroup.subtree_control").write_text("+cpu")
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        return None
    return folder
