"""Where threads run: the machine's memory nodes and cores, and which of them each thread is bound to.

On a machine with several nodes (NUMA), a core reads its own node's memory faster than another's. A thread that is bound
to a node and allocates its own data has them there: Linux places a page on the node of the core that first writes it
(Adam 3.2.1, 3.3.1). Threads are bound to a node rather than a core by default, because the roles of a run and other
programs share the machine's cores without coordination: two threads bound to one core would run at half speed while
another core is idle. Within a node the system moves threads to free cores.

The topology is read from Linux's system files; on other systems there is one node, and nothing is bound.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Binding = Literal["off", "node", "core"]

SYSFS_NODES = Path("/sys/devices/system/node")
VARIABLE = "ADAMCTL_BINDING"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Node:
    """One memory node: its number, and the cores of it that this process may use, ascending."""

    number: int
    cores: tuple[int, ...]


def available_cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parse_cores(text: str) -> tuple[int, ...]:
    """Returns the numbers in a list like "0-3,8,10-11", in the kernel's notation.

    Raises:
        ValueError: it is not such a list.
    """
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return tuple(cores)


def usable_cores() -> tuple[int, ...]:
    """Returns the cores that this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def read_nodes(folder: Path = SYSFS_NODES, usable: Sequence[int] | None = None) -> tuple[Node, ...]:
    """Returns the nodes that have usable cores, by number; one node with all cores if the topology is unknown."""
    allowed = usable_cores() if usable is None else tuple(usable)
    nodes: list[Node] = []
    try:
        for path in folder.glob("node[0-9]*"):
            cores = set(parse_cores((path / "cpulist").read_text(encoding="ascii")))
            nodes.append(Node(int(path.name.removeprefix("node")), tuple(sorted(cores.intersection(allowed)))))
    except (OSError, ValueError):
        nodes = []
    nodes = sorted((node for node in nodes if node.cores), key=lambda node: node.number)
    if sum(len(node.cores) for node in nodes) != len(allowed):
        return (Node(0, tuple(allowed)),)
    return tuple(nodes)


def can_bind() -> bool:
    """Whether this system lets a thread choose its cores. macOS does not."""
    return hasattr(os, "sched_setaffinity")


def node_of(thread: int, threads: int, nodes: Sequence[Node]) -> Node:
    """Returns the node of one of `threads` threads: neighbours together, nodes filled in proportion to their cores."""
    total = sum(len(node.cores) for node in nodes)
    place = (2 * thread + 1) * total / (2 * threads)
    for node in nodes:
        if place < len(node.cores):
            return node
        place -= len(node.cores)
    return nodes[-1]


def cores_for(thread: int, threads: int, nodes: Sequence[Node], binding: Binding) -> tuple[int, ...] | None:
    """Returns the cores that one of `threads` threads is bound to; None: the system decides.

    "node" binds if there are several nodes. "core" gives each thread its own core if there are enough, and is for
    processes that share their cores with no others; with too few cores it is the same as "node".
    """
    if binding == "off":
        return None
    if binding == "core" and threads <= sum(len(node.cores) for node in nodes):
        every = [core for node in nodes for core in node.cores]
        return (every[int((2 * thread + 1) * len(every) / (2 * threads))],)
    return node_of(thread, threads, nodes).cores if len(nodes) > 1 else None


def chosen_binding(environment: str | None = None) -> Binding:
    """Returns the value of `ADAMCTL_BINDING`: "off", "node" or "core"; "node" if it is unset or unknown."""
    value = os.environ.get(VARIABLE, "") if environment is None else environment
    if value == "off":
        return "off"
    return "core" if value == "core" else "node"


def describe(threads: int, nodes: Sequence[Node], binding: Binding) -> str:
    """Returns one line that says where `threads` threads run."""
    places = [cores_for(thread, threads, nodes, binding) for thread in range(threads)]
    if not can_bind():
        return "left to the system, which offers no binding"
    if None in places:
        why = "binding is off" if binding == "off" else "one node, which other processes share"
        return f"left to the system: {why}"
    runs: list[list[int]] = []  # [first thread, last thread] on the same cores
    for thread in range(threads):
        if runs and places[thread] == places[runs[-1][0]]:
            runs[-1][1] = thread
        else:
            runs.append([thread, thread])
    return "bound to cores: " + ", ".join(
        f"{shown(range(first, last + 1))} to {shown(places[first] or ())}" for first, last in runs
    )


def shown(cores: Sequence[int]) -> str:
    """Returns ascending core numbers in the kernel's notation: "0-3,8"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


class Binder:
    """Binds the threads of one process; created once, called first by each thread.

    Attributes:
        threads: number of threads.
        nodes, binding: the basis of the decision.
    """

    def __init__(
        self,
        threads: int,
        nodes: Sequence[Node] | None = None,
        binding: Binding | None = None,
        set_affinity: Callable[[int, Sequence[int]], None] | None = None,
    ) -> None:
        """Reads the machine and the environment for arguments that are not given."""
        self.threads = threads
        self.nodes = read_nodes() if nodes is None else tuple(nodes)
        self.binding = chosen_binding() if binding is None else binding
        self._set = set_affinity or getattr(os, "sched_setaffinity", None)

    @property
    def separates(self) -> bool:
        """Whether threads are kept on different memory nodes."""
        return self.binding != "off" and self._set is not None and len(self.nodes) > 1

    def bind(self, thread: int) -> None:
        """Binds the calling thread, number `thread`. If the system refuses, the thread continues unbound."""
        cores = cores_for(thread, self.threads, self.nodes, self.binding)
        if cores is None or self._set is None:
            return
        try:
            self._set(0, cores)
        except OSError as error:
            log.warning("thread %d cannot be bound to cores %s: %s", thread, shown(cores), error)
