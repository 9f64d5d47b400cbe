"""Control groups: processes get a share of a core, or a limit of memory, as on a smaller machine. Linux only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

from adamctl.errors import ConfigurationError

Controller: TypeAlias = Literal["cpu", "memory"]
ROOT = Path("/sys/fs/cgroup")
"""Where version 2 has all groups, and version 1 a folder for each controller."""
FIRST_VERSION = {"cpu": "cpu.cfs_quota_us", "memory": "memory.limit_in_bytes"}
"""A file that only groups of version 1 have."""
PERIOD_US = 10_000
"""A process runs for a part of each 10 ms. With 5 ms it does 0.95 of the work that it is due, since it is stopped more
often; with the usual 100 ms it would stand still for as long as a whole stage of a network takes, or not at all."""
WEIGHT, SHARES = 1_000, 10_240
"""Of a group before other groups and processes that want the same cores: ten times what is usual, in versions 2 and
1."""
CORES_LEAST = 0.1
"""A thousandth of a second of each period: the kernel takes nothing shorter."""


@contextmanager
def control_groups(controller: Controller) -> Iterator[ControlGroups | None]:
    """Yields a place for groups, and removes them; None where this user may make none."""
    folder = _made(ROOT / controller, controller) or _made(ROOT, controller)
    try:
        yield None if folder is None else ControlGroups(folder)
    finally:
        if folder is not None:
            for group in (*(path for path in folder.iterdir() if path.is_dir()), folder):
                with suppress(OSError):  # a process that is still ending holds its group
                    group.rmdir()


@contextmanager
def quotas(
    wanted: str = "--quota", instead: str = "leave --quota out, or run as a user who may"
) -> Iterator[ControlGroups]:
    """Likewise, for shares of cores.

    Args:
        wanted, instead: what needs them, and what else can be done, for the error.

    Raises:
        ConfigurationError: none can be made here.
    """
    with control_groups("cpu") as made:
        if made is None:
            raise ConfigurationError(
                f"{wanted}: expected a control group for processor time that this user may write to (cgroup v1 cpu, or "
                f"v2); found none under {ROOT}: {instead}"
            )
        yield made


class ControlGroups:
    """Groups by name; `control_groups` makes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count(1)

    def share_cores(self, name: str, pid: int, cores: float, *, before_others: bool = False) -> None:
        """Gives a process, with all its threads, so many cores together; at least CORES_LEAST.

        `before_others`: where others keep all cores busy, it has ten times a thread's share of them.
        """
        self._share(name, (pid,), cores, before_others=before_others)

    def share_together(self, pids: Sequence[int], cores: float) -> None:
        """Gives several processes so many cores together, in a group without a name; at least CORES_LEAST."""
        self._share(str(next(self._numbers)), pids, cores)

    def give(self, pid: int, cores: float) -> None:
        """Gives a process cores before others, in a group without a name; may be called again, with other shares."""
        self.share_cores(str(next(self._numbers)), pid, cores, before_others=True)

    def limit_memory(self, name: str, pid: int, limit_bytes: int) -> None:
        """Has the kernel kill a process that needs more memory than that."""
        self._put(name, (pid,), {"memory.max": limit_bytes}, {"memory.limit_in_bytes": limit_bytes})

    def _share(self, name: str, pids: Sequence[int], cores: float, *, before_others: bool = False) -> None:
        allowed_us = round(cores * PERIOD_US)
        new: dict[str, int | str] = {"cpu.max": f"{allowed_us} {PERIOD_US}"}
        old = {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": allowed_us}
        if before_others:
            new["cpu.weight"], old["cpu.shares"] = WEIGHT, SHARES
        self._put(name, pids, new, old)

    def _put(self, name: str, pids: Sequence[int], new: Mapping[str, int | str], old: Mapping[str, int]) -> None:
        """Moves processes to a group with these settings of version 2, or else of version 1."""
        group = self._folder / name
        group.mkdir()
        for setting, value in (new if (group / next(iter(new))).exists() else old).items():
            (group / setting).write_text(str(value))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))


def _made(root: Path, controller: Controller) -> Path | None:
    folder = root / f"adamctl-bench-{os.getpid()}"
    try:
        folder.mkdir()
        if not (folder / FIRST_VERSION[controller]).exists():  # what groups below may limit is said above them
            if controller not in (folder / "cgroup.controllers").read_text().split():
                raise FileNotFoundError(f"no groups for {controller}")
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        with suppress(OSError):
            folder.rmdir()
        return None
    return folder
