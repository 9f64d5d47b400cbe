"""What takes the place of threads, links, clients and waiting times while a seed of partitions runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from adamctl.kernels.partition import member as member_module
from adamctl.kernels.partition import program as program_module
from adamctl.model.partition import plan as plan_module
from adamctl.roles.worker import session as session_module
from adamctl.roles.worker.partition import engine as engine_module
from adamctl.roles.worker.partition import flight_engine
from adamctl.roles.worker.partition import lead as lead_module
from adamctl.roles.worker.partition import threads as threads_module
from adamctl.roles.worker.partition import work as work_module
from tests.sim.partitions.links import SimData, SimHangWatcher, SimLinks, SimParameters
from tests.sim.partitions.member import TIME_OF_NOBODY, SimMember, SimProgram, SimThreads, post_by_seat

POLL_S, WATCH_S = 0.5, 0.5
Change = tuple[Any, str, Any]
"""An owner, a name in it, and what takes its place."""


def _nothing(*values: Any, **others: Any) -> None:
    return None


RIG: Sequence[Change] = (
    (member_module, "Program", SimProgram),
    (program_module, "post_by_python", post_by_seat),
    (engine_module, "Member", SimMember),
    (flight_engine, "FlightThreads", SimThreads),
    (threads_module, "Binder", _nothing),
    (threads_module, "threadpool_limits", _nothing),
    (threads_module, "time", TIME_OF_NOBODY),
    (work_module, "ParameterClient", SimParameters),
    (work_module, "DataClient", SimData),
    (work_module, "Links", SimLinks),
    (lead_module, "HangWatcher", SimHangWatcher),
    (work_module, "choose", lambda: "numpy"),
    (work_module, "WATCH_S", WATCH_S),
    (session_module, "POLL_S", POLL_S),
)


@contextmanager
def changed(changes: Sequence[Change]) -> Iterator[None]:
    """Puts other things in the place of some, and puts those back."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, instead in changes:
            setattr(owner, name, instead)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def gathered_up_to(units: int) -> Sequence[Change]:
    """Returns what makes this the largest softmax whose outputs are gathered."""
    return ((plan_module, "HEAD_GATHERED_MAX", units),)


@dataclass
class PartitionFault:
    """A planted fault to be found. `changes`: what takes the place of what while the members of a seed are at work."""

    name: str
    about: str
    changes: Sequence[Change]
