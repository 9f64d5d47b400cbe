"""What the parts of a member of the configuration service share: the keys, the nodes, Paxos, and the instructions.

`ControllerCore` makes it and gives it to its parts, so that they need not know `ControllerCore`. Pure.
"""

from __future__ import annotations

from adamctl.roles.controller.core.instructions import Instruction, Refuse
from adamctl.roles.controller.core.paxos.forming import cluster_identity
from adamctl.roles.controller.core.paxos.messages import Member
from adamctl.roles.controller.core.paxos.paxos_core import PaxosCore
from adamctl.roles.controller.core.service.config import ControllerConfig
from adamctl.roles.controller.core.service.nodes import NodeTable
from adamctl.roles.controller.core.service.state import KeyState
from adamctl.wire.constants import ErrorCode


class Shared:
    """See the module.

    Attributes:
        state: the keys, as decided so far.
        nodes: the nodes that are alive.
        now: clock reading of the event being handled.
    """

    def __init__(self, config: ControllerConfig, paxos: PaxosCore) -> None:
        self.config = config
        self.paxos = paxos
        self.state = KeyState(history_keys_max=config.history_keys_max, sessions_max=config.sessions_max)
        self.nodes = NodeTable()
        self.now = 0.0
        self._out: list[Instruction] = []

    @property
    def members(self) -> tuple[Member, ...]:
        return self.paxos.acceptor.members

    @property
    def cluster(self) -> str:
        """The identity that nodes know this cluster by: that of the cluster that was restored here, or its own."""
        return self.state.cluster or cluster_identity(self.paxos.acceptor.vote.cluster)

    @property
    def leader(self) -> Member | None:
        """The leader, as far as this member knows."""
        leader = self.paxos.leader
        return next((member for member in self.members if member.identity == leader), None)

    def put(self, instruction: Instruction) -> None:
        """Adds an instruction to this step."""
        self._out.append(instruction)

    def taken(self) -> list[Instruction]:
        """Returns the instructions of this step, and begins the next."""
        out, self._out = self._out, []
        return out

    def refuse_follower(self, token: int) -> None:
        """Refuses a request that only the leader answers, and names the leader."""
        leader = self.leader
        if leader is None or leader.identity == self.paxos.identity:
            text = f"controller {self.paxos.acceptor.vote.name} knows no leader at the moment; try again"
            self.put(Refuse(token, ErrorCode.NOT_LEADER, text))
        else:
            text = f"controller {leader.name} at {leader.address} leads"
            self.put(Refuse(token, ErrorCode.NOT_LEADER, text, {"leader": leader.address}))
