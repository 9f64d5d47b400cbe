"""How each role of a run on many hosts is started: a pure function of the experiment, of paths and of addresses.

Paths are those of the front's machine and mean the same on all hosts, or are not there and the agent says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from adamctl.config.experiment import Experiment
from adamctl.config.urls import is_url, without_file_scheme
from adamctl.launch.hosts.placement import Placed
from adamctl.launch.plan import (
    COORDINATOR,
    checkpoint_roots,
    coordinator_role,
    data_folders,
    data_roots,
    is_path,
    loss_window,
)
from adamctl.roles.role_process import RoleCommand

COORDINATOR_WAIT_S = 180
"""Seconds that the coordinator waits for servers: a host that has just come compiles and loads before they serve."""

NAME_WAIT_S = 120
"""Seconds that a role waits for the controllers, and for its name: an agent that is cut off keeps the process which has
that for KEEP_S after it has noticed the cut, and then has it end."""


@dataclass(frozen=True)
class Run:
    """What every role of a run may need to know.

    Attributes:
        experiment_file, folder: its resolved experiment and its run folder, beside the front.
        sockets: folder for Unix sockets of roles beside the front, and for the controller's store.
        resume: `auto`, `none` or a path.
        bind, advertise: where roles beside the front listen, and the host at which others reach them.
        port: where agents dial the front; 0: any free port.
    """

    experiment: Experiment
    experiment_file: Path
    folder: Path
    sockets: Path
    resume: str
    bind: str
    advertise: str
    port: int = 0

    @property
    def listening(self) -> tuple[str, ...]:
        """The flags that say where roles beside the front listen."""
        return ("--bind", self.bind, "--advertise", self.advertise, "--socket-folder", str(self.sockets))


@dataclass(frozen=True)
class Start:
    """What an agent is told about a role, besides its name: as in `adamctl.wire.messages.HostStart`."""

    arguments: tuple[str, ...]
    folder: bool = False
    needs: tuple[tuple[str, ...], ...] = ()


def on_host(run: Run, placed: Placed, controllers: Sequence[str], peers: Mapping[str, str]) -> Start:
    """Returns how a role is started by an agent.

    Args:
        controllers: their addresses.
        peers: name -> `host:port` of the controllers that run on hosts; empty if there are none.
    """
    flags = ("--wait-for-name", "--controller-deadline", str(NAME_WAIT_S))
    member = (*flags, *(part for address in controllers for part in ("--controller", address)))
    experiment = run.experiment
    checkpoints = checkpoint_roots(experiment, run.folder, run.resume)
    if placed.role == "controller":
        listed = ",".join(f"{node}={address}" for node, address in peers.items())
        port = peers[placed.node].rpartition(":")[2]
        return Start(("--port", port, "--peers", listed), folder=True)
    if placed.role == "worker":
        own = checkpoints if experiment.has_own_parameters else ()
        return Start(("--threads", str(placed.threads), *own, *member))
    if placed.role == "ps":
        stores = experiment.cluster.store == "disk"
        window = loss_window(experiment) if stores else ()
        own = ("--apply-threads", str(placed.threads), "--failure-domain", placed.host)
        return Start((*own, *window, *checkpoints, *member), folder=stores)
    return Start(("--threads", str(placed.threads), *data_roots(experiment), *member), needs=needed_paths(experiment))


def needed_paths(experiment: Experiment) -> tuple[tuple[str, ...], ...]:
    """Returns the paths that a data server needs: its own, or one of the folders in which its set is looked for."""
    source, folders = without_file_scheme(experiment.data.source), data_folders(experiment)
    if is_url(source) or not folders:
        return ()
    return ((folders[0],),) if is_path(source) else (folders,)


def beside_front(run: Run, placed: Placed, controllers: Sequence[str], port: int) -> RoleCommand:
    """Returns how the coordinator, or the only controller at this port, is started beside the front."""
    if placed.role == "controller":
        store = ("--dir", str(run.sockets / "controller"), "--port", str(port))
        return RoleCommand("controller", placed.node, (*store, *run.listening))
    member = tuple(part for address in controllers for part in ("--controller", address))
    own = ("--job", run.experiment.name, "--tended", "--wait", str(COORDINATOR_WAIT_S))
    return coordinator_role(run.experiment_file, run.folder, run.resume, (*member, *run.listening, *own), COORDINATOR)


def agent_flags(run: Run) -> tuple[str, ...]:
    """Returns the flags that let an agent start this run's roles: the roots in which its data and checkpoints lie."""
    return (
        *data_roots(run.experiment),
        *checkpoint_roots(run.experiment, run.folder, run.resume),
    )
