"""The host agent as a plug-in of the command line."""

from __future__ import annotations

from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="host",
    summary="Start, watch and end the roles of a run on this machine",
    run="adamctl.roles.host.server:run",
    options=(
        Option("front", "address of the run's front, tcp://host:port, as adamctl train --hosts shows it"),
        Option("root", "folder for logs and stores of roles; by default adamctl/host/FRONT in your state folder"),
        Option(
            "data-root",
            "folder or URL in which the run's data servers may read; by default the one it is started in "
            "(ADAMCTL_DATA_ROOT)",
            str,
            None,
            multiple=True,
        ),
        Option(
            "checkpoint-root",
            "folder in which checkpoints may be written and read; by default none (ADAMCTL_CHECKPOINT_ROOT)",
            str,
            None,
            multiple=True,
        ),
        Option("cores", "cores that the run may use; by default all of this machine", int, None),
        Option("tls", "speak TLS with the front at a loopback address too, as at all others", bool, False),
        Option("wait", "seconds to wait for the front before giving up", float, 300.0),
    ),
    needs_controller=False,
    arenas=2,
)
