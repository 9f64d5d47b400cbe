"""What must hold after every event, whatever happened (I9, and leases across changes of the leader)."""

from __future__ import annotations

from zlib import crc32

import msgspec

from adamctl.roles.controller.core.instructions import Send
from adamctl.roles.controller.core.paxos.messages import Accepted, Ballot, Confirmed, Entry, Prepare, Promise
from adamctl.roles.controller.core.service.commands import Change, Part, carry_out, decode_commands
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.state import KeyState
from tests.sim.controllers.controller import SimController
from tests.sim.controllers.nodes import Leases
from tests.sim.engine import ViolationError, World


class Invariants:
    """Knows everything that any controller has ever done.

    Attributes:
        decided: slot -> the entry that was applied there first; nothing else ever may be.
        truth: what these lead to, computed apart from all controllers.
    """

    def __init__(self, world: World, config: ControllerConfig, leases: Leases) -> None:
        self.world = world
        self.decided: dict[int, Entry] = {}
        self.truth = KeyState(history_keys_max=config.history_keys_max, sessions_max=config.sessions_max)
        self._leases = leases
        self._digests: dict[int, int] = {}
        self._leaders: dict[Ballot, tuple[str, int]] = {}
        self._promised: dict[int, Ballot] = {}  # identity -> highest promise ever sent
        self._done: set[tuple[str, int]] = set()  # requests that have changed something

    def applied(self, host: SimController, entry: Entry, digest: int) -> None:
        """One value per slot; the same state everywhere after it; each request at most once."""
        known = self.decided.get(entry.slot)
        if known is None:
            if entry.slot != len(self.decided) + 1:
                raise ViolationError(f"slots out of order: {host.name}, {entry.slot} after {len(self.decided)} slots")
            self.decided[entry.slot] = entry
            self._first(entry)
        elif (known.value, known.members) != (entry.value, entry.members):
            raise ViolationError(f"two values for a slot: {known} and, at {host.name}, {entry}")
        if self._digests[entry.slot] != digest:
            raise ViolationError(f"another state after a slot: {host.name}, slot {entry.slot}")

    def _first(self, entry: Entry) -> None:
        for command in decode_commands(entry.value):
            record = carry_out(self.truth, command)
            if isinstance(command, Change) and record.effect is not None:
                request = (command.session, command.sequence)
                if request in self._done:
                    raise ViolationError(f"a request applied twice: {request}, in slot {entry.slot}")
                self._done.add(request)
            if isinstance(command, Part) and record.effect is not None:
                self._leases.removed(command.node, command.incarnation)
        state = self.truth.snapshot()
        self._digests[entry.slot] = crc32(msgspec.msgpack.encode(state))

    def sending(self, host: SimController, instruction: Send) -> None:
        """Promises are durable before they are sent, and are kept."""
        assert host.core is not None
        message, vote = instruction.message, host.disk.vote
        if not isinstance(message, Prepare | Promise | Accepted | Confirmed):
            return
        identity = host.core.paxos.identity
        if vote is None or vote.identity != identity or vote.promised < message.ballot:
            raise ViolationError(f"not on disk when sent: {host.name} sends {message} and has only {vote}")
        if isinstance(message, Accepted):
            if not host.disk.holds(message.slot, message.ballot, self.decided.get(message.slot)):
                raise ViolationError(f"not on disk when sent: {host.name} sends {message}")
            if message.ballot < self._promised.get(identity, Ballot()):
                promised = self._promised[identity]
                raise ViolationError(f"accepted below a promise that was sent: {host.name}, {message}, {promised}")
        if isinstance(message, Promise):
            self._promised[identity] = max(self._promised.get(identity, Ballot()), message.ballot)

    def stepped(self, host: SimController) -> None:
        """At most one leader per ballot."""
        assert host.core is not None
        leadership = host.core.paxos.leadership
        if leadership is not None:
            who = (host.name, host.run)
            if self._leaders.setdefault(leadership.ballot, who) != who:
                other = self._leaders[leadership.ballot]
                raise ViolationError(f"two leaders of one ballot: {leadership.ballot}, {who}, {other}")
