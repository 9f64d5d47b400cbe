"""`adamctl ROLE start`: the flags of every role, the role's own flags, and the driver that runs it."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from adamctl.cli import options
from adamctl.cli.lazy import LazyGroup
from adamctl.cli.number_types import DEADLINE_S, FINITE, Number
from adamctl.errors import ConfigurationError
from adamctl.roles.registry import ROLES, Option, Role

BUILT_IN = frozenset({"controller", "ps", "data", "worker", "coordinator", "host"})
OTHER_COMMANDS = {
    "controller": {
        "backup": ("adamctl.cli.cluster.backup:backup", "Write the configuration to a file"),
        "check": ("adamctl.cli.cluster.check_store:check", "Look through the folder of a stopped controller"),
        "replace": ("adamctl.cli.cluster.controller:replace", "Replace a lost controller with another one"),
        "restore": ("adamctl.cli.cluster.backup:restore", "Put a backup onto new controllers"),
    },
    "data": {
        "inspect": ("adamctl.cli.data:inspect", "Show what is in a data set"),
        "sample": ("adamctl.cli.data_sample:sample", "Draw training images as passes train on them"),
        "prepare": ("adamctl.cli.prepared_data:prepare", "Write a data set once, ready to serve"),
        "verify": ("adamctl.cli.prepared_data:verify", "Check every byte of a data set written so"),
        "fetch": ("adamctl.cli.data:fetch", "Download and verify a known data set"),
    },
}
"""A role's commands besides `start`: name -> (`module:attribute`, summary)."""
_PATH = click.Path(path_type=Path)
_ENVIRONMENT = {
    "data": "ADAMCTL_DATA",
    "data-root": "ADAMCTL_DATA_ROOT",
    "checkpoint-root": "ADAMCTL_CHECKPOINT_ROOT",
}
_TYPES: dict[type, Number] = {float: FINITE}


def common_parameters(default_port: int = 0) -> list[click.Parameter]:
    """Returns the flags of `adamctl.roles.process.CommonOptions`, under the names of its fields."""
    flags: list[tuple[list[str], dict[str, Any]]] = [
        (
            ["--controller"],
            {
                "multiple": True,
                "metavar": "ADDR",
                "envvar": "ADAMCTL_CONTROLLER",
                "help": "Address of a controller, host:port. [ADAMCTL_CONTROLLER]",
            },
        ),
        options.config_store_flag(),
        (["--name"], {"default": "", "help": "Name of this node; by default the role and random digits."}),
        (
            ["--bind"],
            {
                "default": "127.0.0.1",
                "envvar": "ADAMCTL_BIND",
                "show_default": True,
                "help": "Host to listen on; 0.0.0.0 makes it reachable from other machines.",
            },
        ),
        (["--port"], {"type": int, "help": "TCP port to listen on; by default a free one (controllers: 7070)."}),
        (["--advertise"], {"default": "", "help": "Host at which others reach this node."}),
        *options.token_flags(),
        options.tls_flag(),
        options.insecure_flag(),
        (
            ["--log-level"],
            {"default": "info", "envvar": "ADAMCTL_LOG_LEVEL", "help": "debug, info, warning or error."},
        ),
        (
            ["--health"],
            {"default": "", "metavar": "HOST:PORT", "help": "Serve /livez and /readyz over HTTP there, for probes."},
        ),
        options.log_format_flag(),
        (["--log-file"], {"type": _PATH, "help": "File that also receives the log; a rotated file is followed."}),
        (["--socket-folder"], {"type": _PATH, "help": "Folder of the Unix socket for peers on this machine."}),
        (["--capacity", "capacity_bytes"], {"default": 0, "help": "Bytes of memory that this node offers."}),
        (["--lifeline-fd"], {"type": int, "hidden": True}),
        (["--ready-fd"], {"type": int, "hidden": True}),
        (
            ["--controller-deadline", "controller_deadline_s"],
            {
                "type": DEADLINE_S,
                "default": 60.0,
                "help": "Seconds that controllers may be unreachable; servers with jobs wait on.",
            },
        ),
        (
            ["--stop-deadline", "stop_deadline_s"],
            {"type": DEADLINE_S, "default": 30.0, "help": "Seconds that this role may take to end."},
        ),
        (
            ["--wait-for-name"],
            {"is_flag": True, "help": "Wait while another process that is ending, or lost, has this name."},
        ),
    ]
    return [click.Option(names, **attributes) for names, attributes in flags]


def find_role(name: str) -> Role:
    """Returns the description of a role; built-in ones are found without searching the installed packages.

    Raises:
        ConfigurationError: another package's description cannot be loaded, or is not a role.
    """
    if name in BUILT_IN:
        role = import_module(f"adamctl.roles.{name}.role").ROLE
        assert isinstance(role, Role)
        return role
    found, point = ROLES.load(name)
    if not isinstance(found, Role):
        raise ConfigurationError(f"entry point {name!r} ({point.value}) is not an adamctl.roles.registry.Role")
    return found


class RoleGroup(LazyGroup):
    """`adamctl ROLE`: `start`, and the role's other commands."""

    def sections(self) -> dict[str, dict[str, str]]:
        others = OTHER_COMMANDS.get(self.name or "", {})
        return {"Commands": {"start": "Start this role"} | {name: text for name, (_, text) in others.items()}}

    def load(self, name: str) -> click.Command | None:
        if name == "start" and self.name is not None:
            return start_command(find_role(self.name))
        others = OTHER_COMMANDS.get(self.name or "", {})
        return self.imported(others[name][0]) if name in others else None


def role_group(name: str) -> click.Group:
    """Returns the group of a role's subcommands."""
    return RoleGroup(name=name, context_settings={"help_option_names": ["-h", "--help"]})


def start_command(role: Role) -> click.Command:
    """Returns `start` with the flags of every role and those of this one."""
    own = {option.name.replace("-", "_") for option in role.options}
    common = [parameter for parameter in common_parameters(role.default_port) if parameter.name not in own]
    common_names = {parameter.name for parameter in common}

    def start(**values: Any) -> int:
        from adamctl.roles.driver import RESTART, CommonOptions, run_role
        from adamctl.roles.process import restart_process

        shared = {name: value for name, value in values.items() if name in common_names}
        if role.needs_controller:
            shared["controller"] = options.addresses(shared["controller"])
        code = run_role(role, CommonOptions(**shared), {name: values[name] for name in own})
        if code == RESTART:
            restart_process(shared["ready_fd"], shared["lifeline_fd"])
        return code

    return click.Command(
        "start",
        params=[*(_own_parameter(option) for option in role.options), *common],
        callback=start,
        help=role.summary + ".",
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _own_parameter(option: Option) -> click.Option:
    name = option.name.replace("_", "-")
    attributes: dict[str, Any] = {"help": option.help, "multiple": option.multiple}
    if option.kind is bool:
        return click.Option([f"--{name}"], is_flag=True, default=bool(option.default), help=option.help)
    if variable := option.environment or _ENVIRONMENT.get(option.name):
        attributes["envvar"] = variable
    attributes["type"] = click.Path() if option.name in _ENVIRONMENT else _TYPES.get(option.kind, option.kind)
    if not option.multiple:
        attributes["default"] = option.default
        attributes["show_default"] = option.default not in (None, "")
    return click.Option([f"--{name}"], **attributes)
