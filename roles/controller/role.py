"""The controller as a plug-in of the command line."""

from __future__ import annotations

from adamctl.net.address import DEFAULT_CONTROLLER_PORT
from adamctl.roles.registry import Option, Role

ROLE = Role(
    name="controller",
    summary="Keep membership, jobs and bucket maps; start it first",
    run="adamctl.roles.controller.server:run",
    options=(
        Option("dir", "folder for the configuration; by default adamctl/controller in your state folder"),
        Option("peers", "all controllers of the cluster, this one included: name=host:port,... (1, 3 or 5)"),
        Option("lease", "seconds for which a node may believe that it is a member (4); nodes beacon four times", float),
        Option("lost-after", "seconds without a beacon after which a node counts as lost (1.25 leases)", float),
        Option("retire-after", "seconds after its end until nobody needs to remember a client's pushes (600)", float),
    ),
    needs_controller=False,
    default_port=DEFAULT_CONTROLLER_PORT,
    arenas=2,
)
