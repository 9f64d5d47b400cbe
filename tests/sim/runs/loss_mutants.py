"""Planted faults of what follows from lost servers: each a mistake that is easily made, as a change of one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from adamctl.config.records import NodeRecord
from adamctl.roles.coordinator.core.instructions import AttachAgain, FailRun
from adamctl.roles.coordinator.core.losses import LossCore, ProcessKey, Wait
from adamctl.roles.coordinator.core.membership import Membership
from tests.sim.servers.cluster import ServerFault

_server_lost, _server_back, _data_lost = LossCore._server_lost, LossCore._server_back, LossCore._data_lost
_keys_read, _over = LossCore._keys_read, LossCore._over
Over = Callable[[LossCore, int, Wait, float], None]


def _kept_anyway(self: LossCore, key: ProcessKey, cause: str, now_s: float) -> None:
    """A server is waited for, whether it keeps its part or not."""
    plan, self.plan = self.plan, replace(self.plan, kept=True)
    _server_lost(self, key, cause, now_s)
    self.plan = plan


def _copies_do_not_count(self: LossCore, key: ProcessKey, cause: str, now_s: float) -> None:
    plan = self.plan
    self.plan = replace(plan, copies=False, kept=plan.kept and not plan.copies)
    _server_lost(self, key, cause, now_s)
    self.plan = plan


def _disk_does_not_count(self: LossCore, key: ProcessKey, cause: str, now_s: float) -> None:
    plan, self.plan = self.plan, replace(self.plan, kept=False)
    _server_lost(self, key, cause, now_s)
    self.plan = plan


def _lost_and_kept(self: LossCore, key: ProcessKey, cause: str, now_s: float) -> None:
    """Who is gone is waited for, and stays among those that are there."""
    record = self.servers.get(key)
    _server_lost(self, key, cause, now_s)
    if record is not None:
        self.servers[key] = record


def _goes_on_waiting(concerned: Callable[[LossCore, Wait], bool]) -> Over:
    def over(self: LossCore, number: int, wait: Wait, now_s: float) -> None:
        if concerned(self, wait):
            wait.until_s = inf
        else:
            _over(self, number, wait, now_s)

    return over


def _others_do_not_count(self: LossCore, number: int, wait: Wait, now_s: float) -> None:
    servers, self.servers = self.servers, {}
    _over(self, number, wait, now_s)
    self.servers = servers


def _read_once(self: LossCore, number: int, found: Sequence[NodeRecord], now_s: float) -> None:
    _keys_read(self, number, found, now_s)
    if number in self._waits:
        self._waits[number].look_s = inf


def _any_process_is_back(self: LossCore, found: Sequence[NodeRecord]) -> list[NodeRecord]:
    return list(found)


def _back_and_forgotten(self: LossCore, again: NodeRecord, until_s: float, now_s: float) -> None:
    """Who came back is not one of the servers that can be lost."""
    _server_back(self, again, until_s, now_s)
    del self.servers[again.node, again.incarnation]


def _back_without_clients(self: LossCore, again: NodeRecord, until_s: float, now_s: float) -> None:
    _server_back(self, again, until_s, now_s)
    self._out.extend([one for one in self._out.take() if not isinstance(one, AttachAgain)])


def _each_data_server_is_needed(self: LossCore, key: ProcessKey, now_s: float) -> None:
    _data_lost(self, key, now_s)
    if self.data:
        self._out.put(FailRun(f"data server {key[0]} is gone"))


def _last_data_server_is_not_waited_for(self: LossCore, key: ProcessKey, now_s: float) -> None:
    _data_lost(self, key, now_s)
    for wait in self._waits.values():
        wait.until_s = now_s if wait.lost is None else wait.until_s


def _no_data_server_is_no_matter(self: LossCore, key: ProcessKey, now_s: float) -> None:
    self.data.discard(key)


def _not_noted(self: Membership, node: str, incarnation: int, revision: int) -> None:
    """Who was found by its key alone is not looked for among the changes."""


MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "part-that-is-nowhere-waited-for",
            "a server is waited for that keeps its part nowhere",
            [(LossCore, "_server_lost", _kept_anyway)],
        ),
        ServerFault(
            "copies-not-trusted",
            "the run fails when a server is lost, though others have copies",
            [(LossCore, "_server_lost", _copies_do_not_count)],
        ),
        ServerFault(
            "disk-not-trusted",
            "the run fails when a server is lost, though it keeps its part",
            [(LossCore, "_server_lost", _disk_does_not_count)],
        ),
        ServerFault(
            "lost-and-still-counted",
            "a lost server stays among those that are there",
            [(LossCore, "_server_lost", _lost_and_kept)],
        ),
        ServerFault(
            "server-waited-for-for-ever",
            "there is no end to waiting for a server that keeps its part",
            [(LossCore, "_over", _goes_on_waiting(lambda core, wait: wait.lost is not None and not core.plan.copies))],
        ),
        ServerFault(
            "goes-on-without-any-server",
            "the run goes on when no server at all has come back",
            [(LossCore, "_over", _goes_on_waiting(lambda core, wait: wait.lost is not None and core.plan.copies))],
        ),
        ServerFault(
            "others-do-not-count",
            "the run fails when a server stays away, though others have its part",
            [(LossCore, "_over", _others_do_not_count)],
        ),
        ServerFault(
            "keys-read-once",
            "who has not come back when its key is first read is not looked for again",
            [(LossCore, "_keys_read", _read_once)],
        ),
        ServerFault(
            "lost-process-is-back",
            "the key of the process that was lost counts as the next one",
            [(LossCore, "_others", _any_process_is_back)],
        ),
        ServerFault(
            "back-and-forgotten",
            "who came back cannot be lost again",
            [(LossCore, "_server_back", _back_and_forgotten)],
        ),
        ServerFault(
            "back-without-clients",
            "clients do not attach to a server that came back",
            [(LossCore, "_server_back", _back_without_clients)],
        ),
        ServerFault(
            "each-data-server-is-needed",
            "the run fails when one of several data servers is lost",
            [(LossCore, "_data_lost", _each_data_server_is_needed)],
        ),
        ServerFault(
            "last-data-server-not-waited-for",
            "the run fails at once when the last data server is lost",
            [(LossCore, "_data_lost", _last_data_server_is_not_waited_for)],
        ),
        ServerFault(
            "no-data-server-no-matter",
            "nobody is waited for when the last data server is lost",
            [(LossCore, "_data_lost", _no_data_server_is_no_matter)],
        ),
        ServerFault(
            "data-waited-for-for-ever",
            "there is no end to waiting for a data server",
            [(LossCore, "_over", _goes_on_waiting(lambda core, wait: wait.lost is None))],
        ),
        ServerFault(
            "came-and-went-unseen",
            "a process that comes and goes between two readings of changes is never told of",
            [(Membership, "found", _not_noted)],
        ),
    )
}
