"""`train --hosts`: what a run on many hosts is made of, before any host is there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits

import msgspec

from adamctl import __version__
from adamctl.config.experiment import Experiment
from adamctl.launch.hosts.asked import HostsAsked
from adamctl.launch.hosts.commands import Run, agent_flags
from adamctl.launch.hosts.host_roles import HostRoles
from adamctl.launch.hosts.keeper import HostKeeper
from adamctl.launch.hosts.placement import CONTROLLERS, workers_on
from adamctl.launch.hosts.table import HostTable
from adamctl.launch.places.engines import BY_HAND, EngineOptions, open_engine
from adamctl.launch.places.places import AgentCommand
from adamctl.launch.plan import COORDINATOR
from adamctl.launch.roles import LocalRoles
from adamctl.launch.run_certificates import RunTls, Trust
from adamctl.launch.run_folder import LOGS, run_name
from adamctl.launch.run_token import SECRETS, TOKEN
from adamctl.launch.supervision import Supervision
from adamctl.net.address import TLS_VARIABLE, is_loopback
from adamctl.net.handshake import make_hello
from adamctl.net.sockets import is_insecure
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.authority import need_cryptography
from adamctl.net.transport import Transport
from adamctl.roles.process import outward_host

LOCAL = "local"
HOSTS = "hosts"
"""Folder inside a run folder: what engines and agents of this machine write."""
_SECRET_VARIABLES = frozenset({"ADAMCTL_TOKEN", "ADAMCTL_TOKEN_FILE", TLS_VARIABLE})
"""What agents and roles get of this run's own, or not at all."""
_ELSEWHERE = "tcp://192.0.2.1:9"
"""An address of no machine (RFC 5737): the way there shows which of ours others see."""


def on_hosts(experiment: Experiment, asked: HostsAsked) -> Experiment:
    """Returns the experiment with as many workers as the run may have hosts for; `partitions` may still be `auto`."""
    cluster = experiment.cluster
    count = asked.most if cluster.partitions == "auto" else workers_on(experiment, asked.most)
    return msgspec.structs.replace(experiment, cluster=msgspec.structs.replace(cluster, workers=count))


def where_to_listen(asked: HostsAsked, bind: str, advertise: str) -> tuple[str, str]:
    """Returns where roles beside the front listen, and the host at which others reach them.

    Args:
        bind, advertise: as given; empty: this machine's loopback for agents of this machine, else all its addresses,
            and the one that it has towards others.
    """
    if asked.engine == LOCAL and not bind and not advertise:
        return "127.0.0.1", "127.0.0.1"
    bind = bind or "0.0.0.0"
    return bind, advertise or (outward_host((_ELSEWHERE,)) if bind in ("0.0.0.0", "::") else bind)


def trust_of(asked: HostsAsked, bind: str, environment: Mapping[str, str], tls: bool) -> Trust:
    """Returns by what the front and the agents of a run know each other, and whether its roles speak TLS.

    Args:
        bind: where roles beside the front listen.
        environment: of this process.
        tls: whether TLS was asked for; beyond loopback it need not be.

    Raises:
        ConfigurationError: TLS is needed and certificates cannot be made here.
    """
    if is_insecure(environment) and not tls:
        return "network"
    given = asked.engine == BY_HAND and environment.get(TLS_VARIABLE)  # the agents of an engine could have none
    if not given and not tls and is_loopback(bind):
        return "network"
    need_cryptography("a run on several machines", "or, on a network that you trust, give --insecure")
    return "certificates" if given else "token"


@dataclass(frozen=True)
class Secrets:
    """What the processes of a run prove who they are with: its token; and certificates, None on a trusted network.

    `trust` says which of them agents use.
    """

    token: str = field(repr=False)
    trust: Trust = "network"
    tls: RunTls | None = None

    @property
    def of_roles(self) -> dict[str, str]:
        """What the environment of roles beside the front has of it: with certificates they need no token."""
        return {"ADAMCTL_TOKEN": self.token} if self.tls is None else {}


def make_roles(
    run: Run,
    asked: HostsAsked,
    environment: Mapping[str, str],
    secrets: Secrets,
    transport: Transport,
    stored: bool,
    note: Callable[[str], None],
    on_listening: Callable[[str], None],
) -> tuple[HostRoles, Supervision]:
    """Returns the roles of a run on hosts and who judges their ends. Call it on the front's event loop.

    Args:
        environment: of this process.
        transport: how to reach the roles.
        stored: whether what a parameter server holds outlives its process.
        on_listening: told where the front listens.

    Raises:
        ConfigurationError: there is no such engine here.
    """
    folder = run.folder / HOSTS
    folder.mkdir(mode=0o700, exist_ok=True)
    name = run_name(run.folder)
    plain = {key: value for key, value in environment.items() if key not in _SECRET_VARIABLES}
    engine = open_engine(asked.engine, EngineOptions(name, folder, plain, note, asked.flags))

    def agent(address: str) -> AgentCommand:
        if asked.engine == BY_HAND and not is_loopback(run.advertise):
            note(_what_agents_need(run, secrets.trust))
        own: tuple[str, ...] = ("--root", str(folder.absolute())) if asked.engine == LOCAL else ()
        own += ("--cores", str(asked.cores)) if asked.cores else ()
        own += _how_to_dial(run, secrets.trust, environment)
        line = (sys.executable, "-m", "adamctl", "host", "start", "--front", address, *own, *agent_flags(run))
        return AgentCommand(line, {} if secrets.trust == "certificates" else {"ADAMCTL_TOKEN": secrets.token})

    kept = ("coordinator", *(("ps",) if stored else ()), *(("controller",) if asked.most >= CONTROLLERS else ()))
    supervision = Supervision({}, stored=kept)
    local = LocalRoles((), run.folder / LOGS, {**plain, **secrets.of_roles})
    hello = make_hello("front", f"front-{COORDINATOR}", 0, secrets.token)
    table = HostTable(name, __version__, randbits(62) | 1)
    keeper = HostKeeper(run.experiment, asked)
    tls = secrets.tls
    roles = HostRoles(
        run, keeper, engine, agent, transport, hello, table, local, supervision, on_listening=on_listening,
        meeting_agents=None if tls is None else StreamTransport(tls=tls.agents),
        certificates=None if tls is None else tls.certificates,
    )  # fmt: skip
    return roles, supervision


def _how_to_dial(run: Run, trust: Trust, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the flags by which agents speak with the front as it does with them."""
    if trust == "network":
        return ("--insecure",) if is_insecure(environment) else ()
    return ("--tls",) if trust == "token" and is_loopback(run.advertise) else ()


def _what_agents_need(run: Run, trust: Trust) -> str:
    if trust == "certificates":
        return "every machine needs a certificate of its own, as TLS_DIR: adamctl tls create host NAME"
    return f"every machine needs a copy of {run.folder / SECRETS / TOKEN} that only you can read, as TOKEN_FILE"


def run_of(
    experiment: Experiment,
    file: Path,
    folder: Path,
    sockets: Path,
    resume: str,
    listen: tuple[str, str],
    port: int = 0,
) -> Run:
    """Returns what the roles of a run need to know; `listen` is what `where_to_listen` returns."""
    return Run(experiment, file.absolute(), folder.absolute(), sockets, resume, *listen, port)
