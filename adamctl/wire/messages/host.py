"""Typed headers of host agents: an agent joins a run's front, takes its orders and reports what became of them.

An agent dials, so orders travel in answers (docs/decisions/0038-host-agents.md). Both directions are numbered, per
process of an agent: what is sent again after a broken connection is done once.
"""

from __future__ import annotations

from typing import TypeAlias

from adamctl.wire.messages.common import Message


class HostJoinRequest(Message, frozen=True):
    """An agent offers its machine to a run, or comes back to it.

    `process`: a random number that distinguishes the processes that may have the name `node`. `machine` is equal for
    processes of one machine since one boot. `address`: the host at which roles of this machine are reached. `run`: the
    run that it works for already, "" if none. `version`: of adamctl, the same on all hosts of a run.
    """

    node: str
    process: int
    machine: str
    cores: int
    memory_bytes: int
    address: str
    run: str
    version: str


class HostJoinReply(Message, frozen=True):
    """The run's identity, how often to report readings, and for how long to keep roles without the front.

    `run`: empty for an agent of an earlier front, of a run of the same name, which is over. `process`: a random number
    that distinguishes the fronts of runs of one name.
    """

    run: str
    readings_every_s: float
    keep_s: float
    process: int = 0


class HostOrdersRequest(Message, frozen=True):
    """An agent asks for orders beyond `after`, which says that all up to there are carried out; its sign of life.

    Answered when there are any, or after `wait_s` with none.
    """

    node: str
    process: int
    after: int
    wait_s: float


class HostOrdersReply(Message, frozen=True):
    """Body: MessagePack list of orders, by number: all that are not carried out yet, as far as they fit."""


class HostCredentials(Message, frozen=True):
    """The certificate of a role and its key, with the authorities that it trusts; all PEM."""

    authorities: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        """Omits the key, which must not appear in logs."""
        return "HostCredentials(...)"


class HostStart(Message, frozen=True, tag="start"):
    """Start a role process with these arguments after `adamctl ROLE start --name NODE`.

    Refused, and reported as ended, if the agent does not know the role or a flag, or if a path lies outside its roots.
    `folder`: the role keeps its data in a folder of its own at the agent, which outlives the process. `needs`: of each
    group of paths one must be there, so that a run whose data are missing ends at once. `credentials`: with these it
    speaks TLS; it gets them as files in a folder that the agent chooses.
    """

    number: int
    role: str
    node: str
    arguments: tuple[str, ...]
    folder: bool = False
    needs: tuple[tuple[str, ...], ...] = ()
    credentials: HostCredentials | None = None


class HostStop(Message, frozen=True, tag="stop"):
    """End a role process: END_SIGNAL, and SIGKILL `grace_s` later. `node` "": end all of them and the agent.

    `attempt`: the number of the order that started the process; another one of that name is left alone. `forget`: also
    remove what the ended roles have kept on disk.
    """

    number: int
    node: str
    attempt: int
    grace_s: float
    why: str = ""
    forget: bool = False


class HostTail(Message, frozen=True, tag="tail"):
    """Report the last lines of a role's log."""

    number: int
    node: str
    lines: int


class HostPorts(Message, frozen=True, tag="ports"):
    """Report so many TCP ports that are free."""

    number: int
    count: int


Order: TypeAlias = HostStart | HostStop | HostTail | HostPorts


class HostReportRequest(Message, frozen=True):
    """What happened at an agent. Body: MessagePack list of reports, the first of which has the number `first`."""

    node: str
    process: int
    first: int


class HostServing(Message, frozen=True, tag="serving"):
    """A role serves. `incarnation`: as a member of its cluster, 0 if it is none."""

    node: str
    attempt: int
    addresses: tuple[str, ...]
    incarnation: int


class HostFailing(Message, frozen=True, tag="failing"):
    """A role has said why it fails, and still runs. `ago_s`: how long before this report.

    `ends_run`: others of the role would fail as well, so that the run cannot go on without it.
    """

    node: str
    attempt: int
    error: str
    exit_code: int
    retry_helps: bool
    ago_s: float
    ends_run: bool = False


class HostEnded(Message, frozen=True, tag="ended"):
    """The agent has reaped a role process, or could not start it. `status`: negative for a signal's number.

    `error`: what the role, or the agent, says about why; the other fields as in `HostServing` and `HostFailing`.
    """

    node: str
    attempt: int
    status: int
    incarnation: int = 0
    error: str = ""
    exit_code: int = 0
    retry_helps: bool = True
    ago_s: float = 0.0
    ends_run: bool = False


class HostReading(Message, frozen=True, tag="reading"):
    """Processor time and memory of a role process; `cpu_share` is 1.0 for one busy core."""

    node: str
    cpu_share: float
    memory_bytes: int


class HostLines(Message, frozen=True, tag="lines"):
    """The answer to `HostTail`, whose number `order` is. `path`: of the log, at the agent."""

    order: int
    path: str
    lines: tuple[str, ...]


class HostFreePorts(Message, frozen=True, tag="free-ports"):
    """The answer to `HostPorts`, whose number `order` is."""

    order: int
    ports: tuple[int, ...]


class HostDraining(Message, frozen=True, tag="draining"):
    """The agent's machine will be taken away in `deadline_s` seconds."""

    deadline_s: float
    why: str


Report: TypeAlias = HostServing | HostFailing | HostEnded | HostReading | HostLines | HostFreePorts | HostDraining


class HostTailRequest(Message, frozen=True):
    """An operator asks a run's front for the last lines of the log of a role, or, with `node` "", of each role."""

    node: str
    lines: int


class HostTailReply(Message, frozen=True):
    """Body: MessagePack list of `HostLog`."""


class HostLog(Message, frozen=True):
    """The end of a role's log on its host. `problem`: why there are no lines."""

    node: str
    host: str
    path: str
    lines: tuple[str, ...]
    problem: str = ""
