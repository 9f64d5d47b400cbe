"""What the machines are like on which a benchmark's processes run: slow links, a share of a core, pauses."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import inf
from random import Random

from adamctl.bench.control_groups import CORES_LEAST, PERIOD_US, ControlGroups, quotas
from adamctl.bench.namespaces import Namespaces, namespaces
from adamctl.errors import ConfigurationError

STILL_MOST = 0.9
"""Most of the time in which one process or another may stand still."""


@dataclass(frozen=True)
class Pauses:
    """How long and how often processes stand still: at random, each once before any of them again, never two at once.

    With one flight open, whoever stands still soon stops all others, so P processes that do so for a share s of the
    time each leave 1 - P s of the speed. With enough flights open a pause costs only its own process's time, which
    leaves 1 - s.

    Attributes:
        share: of the time that each process stands still.
        mean_s: of one pause. Pauses, and the times between them, last from half to one and a half times their mean.
    """

    share: float
    mean_s: float

    def check(self, processes: int) -> None:
        """Checks pauses of so many processes.

        Raises:
            ConfigurationError: they cannot each stand still for that share of the time.
        """
        if self.share * processes > STILL_MOST:
            raise ConfigurationError(
                f"--pauses: expected at most {STILL_MOST / processes:.2g} with {processes} partitions: one at a time "
                f"stands still; found {self.share:g}"
            )

    def draw(self, random: Random, processes: int) -> tuple[float, float]:
        """Returns how long all processes run, and then one of them stands still, in seconds."""
        still = self.share * processes
        return random.uniform(0.5, 1.5) * self.mean_s * (1 - still) / still, random.uniform(0.5, 1.5) * self.mean_s


@dataclass(frozen=True)
class Machines:
    """What is emulated; by default nothing: all processes are on this machine as it is.

    Attributes:
        links_bytes_per_s: links that are measured, one after the other, beside those without a limit. Each partition
            then has a network of its own and one link to the others, with this rate in each direction.
        transfer_share: one more link: that whose transfer of a flight takes this share of the flight's compute time.
        quota_cores: of each process; None: no limit.
        pauses: of each partition; None: none.
    """

    links_bytes_per_s: tuple[float, ...] = ()
    transfer_share: float | None = None
    quota_cores: float | None = None
    pauses: Pauses | None = None

    def __post_init__(self) -> None:
        if self.quota_cores is not None and self.quota_cores < CORES_LEAST:
            raise ConfigurationError(f"--quota: expected at least {CORES_LEAST} core; found {self.quota_cores:g}")

    @property
    def have_links(self) -> bool:
        """Whether each partition has a network of its own."""
        return bool(self.links_bytes_per_s) or self.transfer_share is not None

    @property
    def share(self) -> float:
        """Returns what each process has of a core, at most 1."""
        return 1.0 if self.quota_cores is None else min(self.quota_cores, 1.0)

    def idle_s(self, between_s: float = inf) -> float:
        """Returns how long a block waits, on average, for two processes that have used up their share of a core.

        The one that sends and the one that receives each stand still for a part of every period in which they have
        much to do. So of several blocks in one period not every one waits.

        Args:
            between_s: from one block to the next, while both processes are at work.
        """
        return (1 - self.share) ** 2 * min(PERIOD_US * 1e-6, between_s)

    def speed(self, partitions: int, threads: int, cores: int) -> float:
        """Returns how fast a thread computes, as a share of what one alone does on a core.

        Args:
            partitions: that compute at the same time.
            threads: of each.
            cores: of this machine.
        """
        share = min(cores / (partitions * threads), 1.0)
        return share if self.quota_cores is None else min(self.quota_cores / threads, share)


class Emulated:
    """The machines of a benchmark's processes, by name.

    Attributes:
        machines: what they are like.
        pids: the process on each.
    """

    def __init__(self, machines: Machines, networks: Namespaces | None, groups: ControlGroups | None) -> None:
        self.machines, self._networks, self._groups = machines, networks, groups
        self.pids: dict[str, int] = {}

    def place(self, name: str) -> tuple[int, str] | None:
        """Returns a machine's own network, as a process of it and its address; None: it has none of its own."""
        return None if self._networks is None else (self._networks.holder(name), self._networks.address(name))

    def holds(self, name: str, pid: int) -> None:
        """Notes that a process is on a machine."""
        self.pids[name] = pid
        if self._groups is not None and self.machines.quota_cores is not None:
            self._groups.share_cores(name, pid, self.machines.quota_cores)

    def limit(self, names: Sequence[str], bytes_per_s: float | None) -> None:
        """Gives the machines' links a rate; None: no limit."""
        if self._networks is not None:
            for name in names:
                self._networks.limit(name, bytes_per_s)

    @contextmanager
    def disturbed(self, pids: Sequence[int], seed: int) -> Iterator[None]:
        """Pauses the processes while the block runs, if these machines pause."""
        if self.machines.pauses is None:
            yield
        else:
            with paused(pids, self.machines.pauses, seed):
                yield


@contextmanager
def emulated(machines: Machines, names: Sequence[str]) -> Iterator[Emulated]:
    """Makes machines with these names. Those with links only inside (`namespaces.is_inside`).

    Raises:
        ConfigurationError: control groups cannot be made here.
    """
    with ExitStack() as stack:
        groups = None if machines.quota_cores is None else stack.enter_context(quotas())
        networks = stack.enter_context(namespaces(names)) if machines.have_links else None
        yield Emulated(machines, networks, groups)


@contextmanager
def paused(pids: Sequence[int], pauses: Pauses, seed: int) -> Iterator[None]:
    """Pauses processes while the block runs; all run when it ends."""
    ended, random = threading.Event(), Random(seed)
    order: list[int] = []

    def pause() -> None:
        while True:
            run_s, still_s = pauses.draw(random, len(pids))
            if ended.wait(run_s):
                return
            if not order:
                order.extend(random.sample(pids, len(pids)))
            pid = order.pop()
            os.kill(pid, signal.SIGSTOP)
            try:
                ended.wait(still_s)
            finally:
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=pause, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
