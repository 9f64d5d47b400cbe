"""Requests that wait: for confirmation, for their command to be decided, for a change to watch. Pure.

A part of `ControllerCore`. Nothing waits on a member that does not lead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from adamctl.config.names import NAME_CHARACTERS_MAX, NAME_EXPECTED, is_name
from adamctl.config.records import NodeRecord
from adamctl.roles.controller.core.instructions import Answer, Notice, Probe, Refuse
from adamctl.roles.controller.core.paxos.messages import Entry, Member
from adamctl.roles.controller.core.service.backup import encode_backup
from adamctl.roles.controller.core.service.commands import (
    Change,
    Command,
    Join,
    Outcome,
    Part,
    Restore,
    encode_commands,
    restore_problem,
)
from adamctl.roles.controller.core.service.events import (
    Beacon,
    CompareAndSet,
    Leave,
    Read,
    Register,
    Replace,
    RestoreBackup,
    TakeBackup,
    Watch,
)
from adamctl.roles.controller.core.service.nodes import NODES_PREFIX, Node
from adamctl.roles.controller.core.service.permissions import JobsOfClients, refused, sees
from adamctl.roles.controller.core.service.shared import Shared
from adamctl.roles.controller.core.service.validate import request_problem, size_bytes_of
from adamctl.roles.controller.core.service.watching import Watching
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import (
    ConfigEntry,
    ConfigReadReply,
    ControllerBackupReply,
    ControllerRestoreReply,
    Empty,
    NodeBeaconReply,
    NodeRegisterReply,
)

Confirmable: TypeAlias = Read | Watch | Beacon | TakeBackup
Asked: TypeAlias = CompareAndSet | Register | Leave | RestoreBackup


@dataclass(slots=True)
class _Pending:
    """A command that waits for its slot. `asked` is the request behind it; None: nobody waits for the answer."""

    command: Command
    size_bytes: int
    asked: Asked | None
    why: str = ""


class Requests:
    """See the module.

    Attributes:
        watching: what waits for a key to change.
    """

    def __init__(self, shared: Shared) -> None:
        self.watching = Watching(shared)
        self._jobs_of = JobsOfClients()
        self._shared = shared
        self._confirming: dict[int, tuple[Confirmable, float]] = {}  # by token, with the time of arrival
        self._queue: deque[_Pending] = deque()
        self._proposed: list[_Pending] = []  # the commands of the open slot, in their order
        self._replace: Replace | None = None  # waits, or is proposed
        self._replacing = False

    # --- in -----------------------------------------------------------------------------------------------------------

    def confirm(self, event: Confirmable, now: float) -> None:
        """Takes a request that needs no slot."""
        shared = self._shared
        if isinstance(event, Read | Watch) and (foreign := self._jobs_of.refusal(event)) is not None:
            shared.put(foreign)
            return
        if shared.paxos.leadership is None:
            shared.refuse_follower(event.token)
            return
        self._confirming[event.token] = (event, now)
        shared.paxos.confirm(event.token, now)
        shared.paxos.settle(now)

    def change(self, event: CompareAndSet) -> None:
        problem = request_problem(event)
        if problem:
            self._shared.put(Refuse(event.token, ErrorCode.BAD_MESSAGE, problem))
        else:
            command = Change(event.session, event.sequence, event.changes, event.known_serial)
            self._submit(command, event)

    def register(self, event: Register) -> None:
        shared, request = self._shared, event.request
        if not (is_name(request.node) and is_name(request.role)):
            found = f"{request.role[:NAME_CHARACTERS_MAX]!a} {request.node[:NAME_CHARACTERS_MAX]!a}"
            text = f"{found} are not valid names of a role and a node; expected {NAME_EXPECTED}"
            shared.put(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, text))
            return
        if not shared.paxos.leading:  # nor may it wait here: a new leader knows nothing of who is alive
            shared.refuse_follower(event.token)
            return
        old = shared.nodes.get(request.node)
        same = old is not None and old.record.is_process(request.host, request.pid, request.process)
        if old is not None and old.connection is None and not same:
            self._wait_for_end_of(old, event.token)
            return
        if old is not None and old.connection is not None and not same:
            if request.waits:
                text = f"{old.record.node} is still process {old.record.pid} on {host_name(old.record)}"
                shared.put(Refuse(event.token, ErrorCode.NOT_READY, text))
                return
            text = (
                f"the name {request.node!r} belongs to a living {old.record.role} (process {old.record.pid} on "
                f"{host_name(old.record)}); choose another --name, or end that process first"
            )
            shared.put(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, text))
            return
        revision = shared.state.revision_of(f"{NODES_PREFIX}{request.node}")
        self._submit(Join(request, revision), event)

    def _wait_for_end_of(self, old: Node, token: int) -> None:
        """Refuses a name until the process that has it must know that it is no longer a member, or has certainly ended.

        It may still run, cut off from us, and hold a valid lease.
        """
        shared = self._shared
        shared.put(Probe(old.record))
        text = f"{old.record.node} was process {old.record.pid} on {host_name(old.record)}, which may still be running"
        shared.put(Refuse(token, ErrorCode.NOT_READY, text))

    def restore(self, event: RestoreBackup) -> None:
        """Takes a backup, unless it is none or is meant for others: then nothing of it is kept."""
        command = Restore(event.backup)
        problem = restore_problem(self._shared.state, command)
        if problem is not None and self._shared.paxos.leading:
            self._shared.put(Refuse(event.token, problem.code, problem.message))
        else:
            self._submit(command, event)

    def leave(self, event: Leave) -> None:
        self._submit(Part(event.node, event.incarnation), event, event.why or "left")

    def part(self, node: Node, why: str) -> None:
        """Proposes to remove a node, once."""
        if not node.parting and self._shared.paxos.leading:
            node.parting = True
            self._submit(Part(node.record.node, node.record.incarnation), None, why)

    def replace(self, event: Replace) -> None:
        shared = self._shared
        if not shared.paxos.leading:
            shared.refuse_follower(event.token)
        elif self._replace is not None:
            shared.put(Refuse(event.token, ErrorCode.OVER_QUOTA, "another controller is being replaced; try again"))
        elif isinstance(members := self._replaced(event), str):
            shared.put(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, members))
        elif members == shared.members:
            shared.put(Answer(event.token, Empty()))  # done already
        else:
            self._replace = event

    def _replaced(self, event: Replace) -> tuple[Member, ...] | str:
        """Returns the members after a replacement, or why it is not possible."""
        shared = self._shared
        members = shared.members
        names = ", ".join(member.name for member in members)
        new = shared.paxos.forming.stranger(event.name, event.address, shared.now)
        there = any((member.name, member.address) == (event.name, event.address) for member in members)
        if event.identity and event.identity not in [member.identity for member in members]:
            if there:
                return members  # done already; a late repeat must not replace the present controller by a former one
            return f"controller {event.old} has been replaced already; the controllers are {names}"
        if there and new is None and event.name != event.old and event.old not in [member.name for member in members]:
            return members  # done already
        old = next((member for member in members if member.name == event.old), None)
        if old is None:
            return f"expected one of the controllers {names} to replace, found {event.old!r}"
        if shared.paxos.hears(old, shared.now):
            return f"controller {old.name} at {old.address} answers; only one that has ended can be replaced"
        if event.name != event.old and any(member.name == event.name for member in members):
            return f"{event.name!r} is already the name of a controller; the new one needs another name"
        if new is None:
            return (
                f"no controller called {event.name} at {event.address} has introduced itself yet; start it first, with "
                f"an empty --dir, --name {event.name} and --peers naming it and the living controllers, then try again"
            )
        kept = [member for member in members if member != old]
        return tuple(sorted([*kept, Member(event.name, new, event.address)]))

    def disconnected(self, connection: int) -> None:
        """Forgets a connection, also of requests that wait: when they are answered, their process may have ended."""
        for token, (event, arrived_s) in self._confirming.items():
            if isinstance(event, Beacon) and event.connection == connection:
                self._confirming[token] = (replace(event, connection=None), arrived_s)
        for pending in (*self._proposed, *self._queue):
            if isinstance(pending.asked, Register) and pending.asked.connection == connection:
                pending.asked = replace(pending.asked, connection=None)
        self._shared.nodes.disconnected(connection)
        self._jobs_of.disconnected(connection)
        self.watching.disconnected(connection)

    def submit(self, command: Command) -> None:
        """Proposes a change of this member's own."""
        self._submit(command, None)

    def _submit(self, command: Command, asked: Asked | None, why: str = "") -> None:
        shared = self._shared
        if shared.paxos.leadership is None:
            if asked is not None:
                shared.refuse_follower(asked.token)
            return
        size_bytes = size_bytes_of(command)
        if size_bytes > shared.config.command_bytes_max and asked is not None:
            text = f"the request has {size_bytes} bytes; at most {shared.config.command_bytes_max} are allowed"
            shared.put(Refuse(asked.token, ErrorCode.OVER_QUOTA, text))
            return
        self._queue.append(_Pending(command, size_bytes, asked, why))

    # --- the open slot ------------------------------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Proposes what waits, as long as the open slot is free."""
        paxos = self._shared.paxos
        while paxos.can_propose and (self._queue or self._replace is not None):
            if self._replace is not None:
                self._propose_members(self._replace)
            else:
                self._proposed = self._batch()
                if not self._proposed:
                    return
                paxos.propose(encode_commands([pending.command for pending in self._proposed]))
            paxos.settle(now)

    def _batch(self) -> list[_Pending]:
        config = self._shared.config
        for pending in tuple(self._queue):  # all earlier commands are applied, so the owners of jobs are known
            refuse = refused(self._shared.state, pending.asked)
            if refuse is not None:
                self._queue.remove(pending)
                self._shared.put(refuse)
        batch = [self._queue.popleft()] if self._queue else []
        size = sum(pending.size_bytes for pending in batch)
        while self._queue and len(batch) < config.batch_commands_max:
            size += self._queue[0].size_bytes
            if size > config.batch_bytes_max:
                break
            batch.append(self._queue.popleft())
        return batch

    def _propose_members(self, event: Replace) -> None:
        members = self._replaced(event)
        if isinstance(members, str):
            self._replace = None
            self._shared.put(Refuse(event.token, ErrorCode.BAD_CONFIGURATION, members))
        else:
            self._replacing = True
            self._shared.paxos.propose(b"", members)

    def members_changed(self, entry: Entry) -> None:
        self._shared.paxos.forming.forget({member.identity for member in entry.members})
        names = ", ".join(f"{member.name} at {member.address}" for member in entry.members)
        self._shared.put(Notice(f"the controllers are now: {names}"))
        if self._replace is not None and self._replacing:
            self._shared.put(Answer(self._replace.token, Empty()))
            self._replace = None
            self._replacing = False

    # --- out ----------------------------------------------------------------------------------------------------------

    def carried_out(self, entry: Entry, index: int, outcome: Outcome) -> None:
        """Answers the request behind a command of an entry, if it was made here, and the watches it concerns."""
        shared = self._shared
        leadership = shared.paxos.leadership
        ours = leadership is not None and entry.ballot == leadership.ballot and index < len(self._proposed)
        pending = self._proposed[index] if ours else None
        if pending is not None:
            self._answer(pending, outcome)
        if outcome.replaced:
            self.watching.notify(None)
        elif outcome.effect is not None and (outcome.effect.puts or outcome.effect.deletes):
            self.watching.notify((*outcome.effect.puts, *outcome.effect.deletes))
        if pending is not None and pending.why and outcome.record is not None:
            record = outcome.record
            shared.put(Notice(f"{record.role} {record.node} on {host_name(record)} {pending.why}"))
        if pending is not None and index == len(self._proposed) - 1:
            self._proposed = []

    def _answer(self, pending: _Pending, outcome: Outcome) -> None:
        shared, asked = self._shared, pending.asked
        if asked is None:
            return
        if outcome.code != ErrorCode.OK:
            shared.put(Refuse(asked.token, outcome.code, outcome.message, outcome.details))
        elif isinstance(asked, CompareAndSet):
            shared.put(Answer(asked.token, outcome.reply()))
        elif isinstance(asked, Leave):
            shared.put(Answer(asked.token, Empty()))
        elif isinstance(asked, RestoreBackup):
            reply = ControllerRestoreReply(outcome.revision, shared.state.incarnation, outcome.left_out)
            shared.put(Answer(asked.token, reply))
            shared.put(Notice(f"a backup of cluster {shared.cluster} was restored at revision {outcome.revision}"))
        elif outcome.record is None:
            self.register(asked)  # the name was taken or freed in the meantime: look again
        else:
            record = outcome.record
            node = shared.nodes.get(record.node)
            if node is not None and asked.connection is not None:
                node.connection = asked.connection
            config = shared.config
            times_s = (config.beacon_interval_s, config.lost_after_s, config.granted_s)
            shared.put(Answer(asked.token, NodeRegisterReply(record.incarnation, *times_s, shared.cluster)))
            text = f"{record.role} {record.node} joined from {host_name(record)}, incarnation {record.incarnation}"
            shared.put(Notice(text))

    def confirmed(self, token: int, now: float) -> None:
        """Answers a request that needs no slot, from what has been decided so far."""
        event, arrived_s = self._confirming.pop(token)
        shared = self._shared
        match event:
            case Read():
                found = shared.state.read(event.prefix, partial(sees, event.role, event.prefix))
                shared.put(Answer(token, ConfigReadReply(shared.state.revision), found))
            case Watch():
                self.watching.begin(event, now)
            case Beacon():
                self._beacon(event, arrived_s)
            case TakeBackup():
                revision = shared.state.revision
                whole = ConfigEntry("/", encode_backup(shared.state, shared.cluster), revision)
                shared.put(Answer(token, ControllerBackupReply(revision), (whole,)))

    def refuse_all(self) -> None:
        """Refuses everything that waits, since this member no longer leads."""
        shared = self._shared
        tokens = [*self._confirming, *self.watching.taken()]
        for pending in (*self._proposed, *self._queue):
            if pending.asked is not None:
                tokens.append(pending.asked.token)
        if self._replace is not None:
            tokens.append(self._replace.token)
        self._confirming.clear()
        self._queue.clear()
        self._proposed = []
        self._replace = None
        self._replacing = False
        for token in tokens:
            shared.refuse_follower(token)

    # --- beacons ------------------------------------------------------------------------------------------------------

    def _beacon(self, event: Beacon, arrived_s: float) -> None:
        shared = self._shared
        node = shared.nodes.get(event.node)
        if node is not None and node.record.incarnation == event.incarnation and not node.parting:
            node.heard_s = max(node.heard_s, arrived_s)
            if event.connection is not None:
                node.connection = event.connection
            shared.put(Answer(event.token, NodeBeaconReply(self._addresses())))
            return
        if node is None or node.record.incarnation == event.incarnation:
            text = (
                f"{event.node} (incarnation {event.incarnation}) is no longer a member: it left, or was silent for "
                f"more than {shared.config.lost_after_s:g} s; start it again"
            )
        else:
            text = (
                f"the name {event.node} was taken over by incarnation {node.record.incarnation} (process "
                f"{node.record.pid} on {host_name(node.record)}); this is incarnation {event.incarnation}"
            )
        shared.put(Refuse(event.token, ErrorCode.STALE_INCARNATION, text))

    def _addresses(self) -> tuple[str, ...]:
        """Returns where the controllers are, if there are several; one alone is never replaced."""
        members = self._shared.members
        return tuple(member.address for member in members) if len(members) > 1 else ()


def host_name(record: NodeRecord) -> str:
    """Returns the part of a host's identity that people know."""
    return record.host.partition("/")[0]
