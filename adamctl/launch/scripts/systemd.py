"""`adamctl launch systemd ROLE`: a unit for a role that runs for as long as its machine."""

from __future__ import annotations

from dataclasses import dataclass

ROLES = ("controller", "ps", "data", "worker", "host")


CONTROLLER = "ADAMCTL_CONTROLLER=host:port[,host:port...] of the controllers"
TLS = (
    "ADAMCTL_TLS=/etc/adamctl/tls-{role}, which user adamctl can read (adamctl tls create {role} {role}-MACHINE; "
    "hostname -s prints MACHINE)"
)
CHECKPOINTS = "ADAMCTL_CHECKPOINT_ROOT=folder of runs; name it in ReadWritePaths=, too (systemctl edit)"


@dataclass(frozen=True)
class _Unit:
    """What differs by role.

    Attributes:
        node: its name in the cluster. Names are unique over all roles, and a machine may have several.
        differs: the variables that differ by machine.
        state: whether it keeps something on disk.
        restart: after which ends it is started again; an agent ends well with each run, and waits for the next one.
    """

    summary: str
    flags: str
    differs: tuple[str, ...]
    state: bool = False
    stop_s: int = 60
    node: str = "{role}-%l"
    restart: str = "on-failure"


_UNITS = {
    "controller": _Unit("controller", "--bind 0.0.0.0 --dir %S/adamctl/controller", (TLS,), True),
    "ps": _Unit("parameter server", "--bind 0.0.0.0 --store %S/adamctl/ps", (CONTROLLER, TLS, CHECKPOINTS), True, 300),
    "data": _Unit(
        "data server", "--bind 0.0.0.0", (CONTROLLER, TLS, "ADAMCTL_DATA and ADAMCTL_DATA_ROOT=folders of data sets")
    ),
    "worker": _Unit("worker", "--bind 0.0.0.0", (CONTROLLER, TLS, CHECKPOINTS)),
    "host": _Unit(
        "host agent",
        "--front ${ADAMCTL_FRONT} --root %S/adamctl/host",
        (
            "ADAMCTL_FRONT=tcp://host:port of the front that this machine works for",
            "ADAMCTL_INSECURE=1 if the run was started with --insecure",
            "ADAMCTL_DATA_ROOT=folder of data sets",
            CHECKPOINTS,
        ),
        True,
        node="%l",
        restart="always",
    ),
}


def systemd_unit(role: str, program: str) -> str:
    """Returns the unit of a role, one of `ROLES`; `program` is the path of adamctl on the machines."""
    unit = _UNITS[role]
    name = f"adamctl-{role}"
    node = unit.node.format(role=role)
    differs = "\n".join(f"#   {line.format(role=role)}" for line in unit.differs)
    state = "StateDirectory=adamctl\nStateDirectoryMode=0700\n" if unit.state else ""
    return f"""# {name}.service: put it into /etc/systemd/system, then: systemctl enable --now {name}
# /etc/adamctl/{role}.env says what differs by machine:
{differs}
# /etc/adamctl/token holds the cluster's secret, for root alone: systemd hands it to the role.
[Unit]
Description=adamctl {unit.summary}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
# The role says itself when it serves, and after that, from its event loop, that it lives.
Type=notify
NotifyAccess=main
WatchdogSec=30
TimeoutStartSec=300
EnvironmentFile=-/etc/adamctl/{role}.env
LoadCredential=token:/etc/adamctl/token
ExecStart={program} {role} start --name {node} --token-file %d/token --socket-folder %t/{name} {unit.flags}
# SIGTERM to the role, which ends in order, with status 143; what is left of it after that is killed.
KillMode=mixed
SuccessExitStatus=143
TimeoutStopSec={unit.stop_s}
Restart={unit.restart}
RestartSec=5
# Wrong configuration (2) and damaged data (5) do not mend themselves.
RestartPreventExitStatus=2 5

User=adamctl
Group=adamctl
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
LockPersonality=yes
LimitNOFILE=65536
RuntimeDirectory={name}
RuntimeDirectoryMode=0700
# By default data may be read in the folder that a role starts in, which would be /.
WorkingDirectory=%t/{name}
{state}# Compiled kernels are kept, so that the next start is fast.
CacheDirectory=adamctl
CacheDirectoryMode=0700
Environment=XDG_CACHE_HOME=%C/adamctl TMPDIR=%t/{name}

[Install]
WantedBy=multi-user.target
"""
