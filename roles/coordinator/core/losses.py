"""What a run does when it loses parameter servers or data servers: an event and a clock reading in, instructions out.

    lost                                        what follows
    a server whose part others have copies of   the run continues; it looks for the next process, and fails if
                                                at the end of the wait no server is left
    a server that keeps its part on a disk      the run waits for its next process, and clients attach; else it fails
    a server with neither                       the run fails
    a data server, with others left             the run continues
    the last data server                        the run waits for any of them, or, where servers share the data out,
                                                for any of the cluster; else it fails

A process that is known to be gone never counts as one that came back, even if its key still exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TypeAlias

from adamctl.config.records import NodeRecord
from adamctl.roles.coordinator.core.events import Tick
from adamctl.roles.coordinator.core.instructions import (
    AttachAgain,
    FailRun,
    Instruction,
    LoseWorker,
    Outbox,
    ReadKeys,
    WatchServer,
)

NO_MEMBER = "it is no longer a member of the cluster"
ATTACH_S_MIN = 1.0
"""The least time that clients get to attach to a server that came back late."""

ProcessKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class LossPlan:
    """How a run keeps its parameters, and its deadlines.

    Attributes:
        copies: every part of the model is on several servers.
        kept: servers keep their parts on a disk, and load them when they are restarted.
        server_again_s: how long to wait for the next process of a lost server.
        data_again_s: how long to wait for any data server when none is left.
        look_every_s: how often keys are read during a wait.
    """

    copies: bool
    kept: bool
    server_again_s: float
    data_again_s: float
    look_every_s: float


# --- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerLost:
    """A parameter server's connection shows that this process is gone."""

    node: str
    incarnation: int
    cause: str


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A process of any role is no longer a member of the cluster."""

    node: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class KeysRead:
    """Answers `ReadKeys` with the records found; a node whose key is gone or unreadable has none."""

    wait: int
    found: tuple[NodeRecord, ...]


@dataclass(frozen=True, slots=True)
class Attached:
    """Answers `AttachAgain`."""

    node: str


Event: TypeAlias = ServerLost | NodeGone | KeysRead | Attached | Tick

# --- the state machine ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Wait:
    """A wait until `until_s`; the keys of `nodes` are read next at `look_s`, inf while they are being read.

    `lost` is the parameter server that is awaited; None: any of the data servers is.
    """

    nodes: tuple[str, ...]
    lost: NodeRecord | None
    cause: str
    until_s: float
    look_s: float


class LossCore:
    """The servers of one run. `step` is the only way in, after `begin`.

    Attributes:
        servers: the parameter servers that are present.
        data: the data servers that are present.
        data_nodes: the names of those that the run began with.
    """

    def __init__(self, plan: LossPlan, servers: Sequence[NodeRecord], data: Sequence[NodeRecord]) -> None:
        self.plan = plan
        self.servers = {(record.node, record.incarnation): record for record in servers}
        self.data = {(record.node, record.incarnation) for record in data}
        self.data_nodes = tuple(record.node for record in data)
        self._names = {record.node for record in (*servers, *data)}
        self._gone: set[ProcessKey] = set()
        self._waits: dict[int, Wait] = {}
        self._last_wait = 0
        self._out = Outbox()

    @property
    def waiting(self) -> bool:
        """Whether the run waits for a server."""
        return bool(self._waits)

    def begin(self) -> list[Instruction]:
        """Returns what the shell has to do first."""
        return [WatchServer(record) for record in self.servers.values()]

    def step(self, event: Event, now_s: float) -> list[Instruction]:
        """Takes one event; `now_s` must not go backwards. Returns what the shell has to do, in order."""
        match event:
            case ServerLost(node, incarnation, cause):
                self._server_lost((node, incarnation), cause, now_s)
            case NodeGone(node, incarnation):
                self._node_gone((node, incarnation), now_s)
            case KeysRead(wait, found):
                self._keys_read(wait, found, now_s)
            case Attached(node):
                self._say(f"parameter server {node} is back")
            case Tick():
                pass  # deadlines are checked after every event
        self._look(now_s)
        return self._out.take()

    def wakeup_s(self) -> float:
        """Returns when a `Tick` is due, inf for never."""
        return min((min(wait.until_s, wait.look_s) for wait in self._waits.values()), default=inf)

    def _say(self, text: str) -> None:
        self._out.say(text)

    def _node_gone(self, key: ProcessKey, now_s: float) -> None:
        if key[0] not in self._names:
            self._out.put(LoseWorker(*key, NO_MEMBER))
            return
        self._server_lost(key, NO_MEMBER, now_s)
        self._gone.add(key)
        if key in self.data:
            self._data_lost(key, now_s)

    # --- parameter servers ------------------------------------------------------------------------------------------

    def _server_lost(self, key: ProcessKey, cause: str, now_s: float) -> None:
        record = self.servers.pop(key, None)
        if record is None:
            return  # already known
        self._gone.add(key)
        if self.plan.copies:
            self._say(f"parameter server {record.node} is gone ({cause}); others take over its part")
        elif self.plan.kept:
            self._say(f"parameter server {record.node} is gone; waiting for it to restart with its part")
        else:
            self._fail(_part_lost(record, cause))
            return
        self._wait((record.node,), record, cause, now_s + self.plan.server_again_s, now_s)

    def _server_back(self, again: NodeRecord, until_s: float, now_s: float) -> None:
        self.servers[again.node, again.incarnation] = again
        self._out.put(WatchServer(again))
        if self.plan.copies:
            self._say(f"parameter server {again.node} is back and gets new copies")
        else:
            self._out.put(AttachAgain(again.node, max(until_s - now_s, ATTACH_S_MIN)))

    # --- data servers -----------------------------------------------------------------------------------------------

    def _data_lost(self, key: ProcessKey, now_s: float) -> None:
        self.data.discard(key)
        self._say(f"data server {key[0]} is gone")
        if not self.data:
            cause = f"data server {key[0]} is gone, and it was the last one"
            self._wait(self.data_nodes, None, cause, now_s + self.plan.data_again_s, now_s)

    def _data_back(self, found: Sequence[NodeRecord]) -> None:
        for record in found:
            self.data.add((record.node, record.incarnation))
            new = record.node not in self._names
            self._names.add(record.node)
            self._say(f"data server {record.node} {'takes its place' if new else 'is back'}")

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait(self, nodes: tuple[str, ...], lost: NodeRecord | None, cause: str, until_s: float, now_s: float) -> None:
        self._last_wait += 1
        self._waits[self._last_wait] = Wait(nodes, lost, cause, until_s, now_s)

    def _keys_read(self, number: int, found: Sequence[NodeRecord], now_s: float) -> None:
        wait = self._waits.get(number)
        if wait is None:
            return  # it came too late
        back = self._others(found)
        if not back:
            wait.look_s = now_s + self.plan.look_every_s
            return
        del self._waits[number]
        if wait.lost is None:
            self._data_back(back)
        else:
            self._server_back(back[0], wait.until_s, now_s)

    def _others(self, found: Sequence[NodeRecord]) -> list[NodeRecord]:
        """Returns the processes that are not known to be gone."""
        return [record for record in found if (record.node, record.incarnation) not in self._gone]

    def _look(self, now_s: float) -> None:
        for number, wait in list(self._waits.items()):
            if now_s >= wait.until_s:
                self._over(number, wait, now_s)
            if now_s >= wait.look_s and number in self._waits:
                wait.look_s = inf
                self._out.put(ReadKeys(number, wait.nodes))

    def _over(self, number: int, wait: Wait, now_s: float) -> None:
        """Ends a wait in which no server came back in time."""
        cause = wait.cause
        if wait.lost is not None and self.plan.copies:
            if self.servers:
                wait.until_s = now_s + self.plan.server_again_s
                return
            cause = f"no parameter server came back within {self.plan.server_again_s:g} s"
        del self._waits[number]
        self._fail(cause if wait.lost is None else _part_lost(wait.lost, cause))

    def _fail(self, cause: str) -> None:
        self._out.put(FailRun(cause))


def _part_lost(record: NodeRecord, cause: str) -> str:
    return (
        f"parameter server {record.node} ({', '.join(record.addresses)}) is gone: {cause}. Its part of the model is "
        "lost; continue from the last checkpoint with --resume and this run's folder"
    )
