"""Flags that several commands share, and how their values become settings of an experiment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from adamctl.cli import completing
from adamctl.cli.number_types import BYTES_PER_S, FINITE, SECONDS
from adamctl.cli.path_types import Folder, Picture
from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.net.address import INSECURE_VARIABLE, TLS_VARIABLE
from adamctl.net.token_file import environment_token, read_token_file

if TYPE_CHECKING:
    from adamctl.config.load import LoadedExperiment
    from adamctl.launch.live_runs import LiveRun

_STORE = "adamctl.config_store"
_RUN = "adamctl.run"
CommandT = TypeVar("CommandT", bound=Callable[..., Any])

SETTING_FLAGS = {
    "workers": "cluster.workers",
    "ps": "cluster.ps",
    "threads": "cluster.threads",
    "passes": "train.passes",
    "seed": "seed",
    "target": "train.target",
}
"""Flags that are short for `--set KEY=VALUE`."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object to stdout.")
_DATA_HELP = "Folder in which a bare name such as mnist is looked up; repeatable. [ADAMCTL_DATA]"
_data_anywhere_option = click.option("--data", multiple=True, metavar="DIR", help=_DATA_HELP)
data_option = click.option("--data", multiple=True, metavar="DIR", type=Folder(), help=_DATA_HELP)
set_option = click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Set any key, e.g. --set optimizer.lr=0.01."
)
_controllers_option = click.option(
    "--controller",
    multiple=True,
    metavar="ADDR",
    envvar="ADAMCTL_CONTROLLER",
    help="Address of a controller, host:port; by default 127.0.0.1:7070. [ADAMCTL_CONTROLLER]",
)


def token_flags() -> list[tuple[list[str], dict[str, Any]]]:
    """Returns names and attributes of --token-file, whose value becomes the token, and of --token, which is refused."""
    text = "File with the cluster's secret, closed to other users. [ADAMCTL_TOKEN_FILE, or the secret in ADAMCTL_TOKEN]"
    return [
        (["--token-file", "token"], {"metavar": "FILE", "callback": _token, "help": text}),
        (["--token", "token_on_the_line"], {"hidden": True, "expose_value": False, "callback": _refuse_token}),
    ]


def log_format_flag() -> tuple[list[str], dict[str, Any]]:
    """Returns names and attributes of --log-format."""
    text = "How log lines are written: text, or one JSON object each. [ADAMCTL_LOG_FORMAT]"
    attributes = {"type": click.Choice(["text", "json"]), "default": "text", "envvar": "ADAMCTL_LOG_FORMAT"}
    return ["--log-format"], {**attributes, "show_default": True, "help": text}


def log_format_option(command: CommandT) -> CommandT:
    """Adds --log-format."""
    names, attributes = log_format_flag()
    return click.option(*names, **attributes)(command)


def token_option(command: CommandT) -> CommandT:
    """Adds --tls-dir and --token-file; the command receives the token itself, empty if there is none."""
    for names, attributes in (*token_flags(), tls_flag()):
        command = click.option(*names, **attributes)(command)
    return command


def tls_flag() -> tuple[list[str], dict[str, Any]]:
    """Returns names and attributes of --tls-dir: ADAMCTL_TLS for this command and the processes that it starts."""
    text = f"Folder with ca.crt, node.crt and node.key, to speak TLS between machines. [{TLS_VARIABLE}]"
    return ["--tls-dir"], {
        "metavar": "DIR", "type": click.Path(), "expose_value": False, "callback": _set_tls, "help": text,
    }  # fmt: skip


def insecure_flag() -> tuple[list[str], dict[str, Any]]:
    """Returns names and attributes of --insecure: ADAMCTL_INSECURE for this command and the processes it starts."""
    text = f"Listen beyond loopback without TLS, with a token only, on a network that you trust. [{INSECURE_VARIABLE}]"
    return ["--insecure"], {"is_flag": True, "expose_value": False, "callback": _set_insecure, "help": text}


def _set_tls(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set_variable(context, TLS_VARIABLE, str(Path(value).absolute()))


def _set_insecure(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        _set_variable(context, INSECURE_VARIABLE, "1")


def _set_variable(context: click.Context, name: str, value: str) -> None:
    """Sets a variable of the environment until the command has ended."""
    before = os.environ.get(name)
    os.environ[name] = value

    def restore() -> None:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before

    context.call_on_close(restore)


def _token(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Raises ConfigurationError: the file cannot be read, holds no token, or other users can read it."""
    if value is None:
        return environment_token(os.environ)
    return read_token_file(Path(value), "--token-file")


def _refuse_token(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise ConfigurationError(
            "--token: every user of the machine can read a token on a command line; put it into a file that only you "
            "can read and give --token-file FILE, or set ADAMCTL_TOKEN; and replace this token by a new one"
        )


runs_option = click.option(
    "--run-dir", default="runs", metavar="DIR", show_default=True, help="Folder that holds the run folders."
)


checkpoint_option = click.option(
    "--checkpoint",
    "which",
    default="",
    metavar="best|last|N",
    shell_complete=completing.completing(lambda context: ("best", "last")),
    help="Which checkpoint of a run: the best on its validation part (the default if it has one), the last, or one by "
    "its number.",
)


def controller_option(command: CommandT) -> CommandT:
    """Adds --controller, --config-store and --run; `addresses` decides which of them counts."""
    names, attributes = config_store_flag()
    return _controllers_option(click.option(*names, **attributes)(_run_option(command)))


def _remember_run(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """If no run is named, the only one running on this machine is used."""
    context.meta[_RUN] = value or context.meta.get(_RUN, "")


_run_option = click.option(
    "--run",
    metavar="RUN",
    shell_complete=completing.live_runs,
    expose_value=False,
    callback=_remember_run,
    help="A run in progress on this machine: its folder, NAME/NNN or NAME. Not needed if it is the only one.",
)
live_run_argument = click.argument(
    "live_run",
    metavar="[RUN]",
    required=False,
    shell_complete=completing.live_runs,
    expose_value=False,
    callback=_remember_run,
)


def config_store_flag(variable: str = "ADAMCTL_CONFIG_STORE") -> tuple[list[str], dict[str, Any]]:
    """Returns names and attributes of --config-store, whose value `addresses` looks up. `variable` may be empty."""
    text = "etcd cluster to use instead of controllers, etcd://host:port[,host:port...]."
    attributes = {"metavar": "URL", "expose_value": False, "callback": _remember_store}
    if variable:
        return ["--config-store"], {**attributes, "envvar": variable, "help": f"{text} [{variable}]"}
    return ["--config-store"], {**attributes, "help": text}


def join_store_option(command: CommandT) -> CommandT:
    """Adds --config-store for a command that joins a cluster only if a flag says so."""
    names, attributes = config_store_flag(variable="")
    return click.option(*names, **attributes)(command)


def experiment_options(command: CommandT) -> CommandT:
    """Adds EXP.toml, --set, --data and the flags that are short for a setting."""
    for option in (
        click.option("--target", type=FINITE, help="Stop when top-1 reaches this share, or another metric this value."),
        click.option("--seed", type=int, help="Seed of initial values and orders."),
        click.option(
            "--passes", type=int, help="Passes over the training set; the learning-rate schedule spans all of them."
        ),
        click.option("--threads", type=int, help="Compute threads of each worker."),
        click.option("--ps", type=int, help="Parameter servers."),
        click.option("--workers", type=int, help="Workers."),
        _data_anywhere_option,  # it may be a folder of another machine: that of a data server
        set_option,
        click.argument("experiment", metavar="EXP.toml", type=click.Path(), shell_complete=completing.experiments),
    ):
        command = option(command)
    return command


def machine_options(command: CommandT) -> CommandT:
    """Adds the flags that say on what machines partitions are priced."""
    for option in (
        click.option(
            "--rates",
            "rates_file",
            metavar="FILE",
            type=click.Path(),
            help="Rates of a machine, as plan --json prints them; without it, this machine is measured.",
        ),
        click.option(
            "--latency", "latency_s", type=SECONDS, default="100us", show_default=True, help="Of the network."
        ),
        click.option(
            "--link",
            "link_bytes_per_s",
            type=BYTES_PER_S,
            default="1Gbit",
            show_default=True,
            help="Network of each machine: one for each worker and each parameter server.",
        ),
    ):
        command = option(command)
    return command


def processes_options(command: CommandT) -> CommandT:
    """Adds the flags that say in how many processes a model predicts."""
    for option in (
        click.option(
            "--memory", metavar="SIZE", help="What each process may use, such as 2GB.  [default: what the machine has]"
        ),
        click.option(
            "--threads",
            type=int,
            help="Compute threads of each process.  [default: one; in partitions, their share of the cores]",
        ),
        click.option(
            "--partitions", type=int, default=1, show_default=True, help="Processes that hold a part of the model each."
        ),
    ):
        command = option(command)
    return command


plot_option = click.option("--plot", type=Picture(), metavar="FILE", help="Write a picture: .svg, .png, .pdf.")


def load(
    experiment: str, settings: tuple[str, ...], data: tuple[str, ...], flags: Mapping[str, Any]
) -> LoadedExperiment:
    """Loads an experiment with the changes from the command line and the environment.

    Raises:
        ConfigurationError: any value is wrong.
    """
    from adamctl.config.load import Origin, Setting, load_experiment, parse_setting

    short = [
        Setting(key, flags[flag], Origin("flag", f"--{flag}"))
        for flag, key in SETTING_FLAGS.items()
        if flags.get(flag) is not None
    ]
    overrides = (*(parse_setting(text) for text in settings), *short)
    return load_experiment(experiment, settings=overrides, environment=os.environ, search=data)


def addresses(controller: tuple[str, ...]) -> tuple[str, ...]:
    """Returns where this command finds the configuration: the controllers' addresses or an etcd URL, both checked.

    One flag or variable may hold several controllers, separated by commas. A flag beats an environment variable. If
    neither is set, a command about a cluster uses that of the run in progress on this machine, or else, as roles do,
    a controller's default address.

    Raises:
        ConfigurationError: both kinds were given, or one is malformed.
    """
    from adamctl.net.address import DEFAULT_CONTROLLER
    from adamctl.roles.configuration import configuration_addresses
    from adamctl.roles.controller.etcd.url import is_etcd

    named = str(click.get_current_context().meta.get(_RUN, "")) if click.get_current_context(silent=True) else ""
    if named and not any(map(is_flag, ("controller", "config_store"))):
        return configuration_addresses(_live_controllers())
    found = tuple(part for text in controller for part in text.replace(",", " ").split())
    store = config_store()
    if (store and not is_etcd(store)) or any(map(is_etcd, found)):
        raise ConfigurationError(
            "expected --controller HOST:PORT or --config-store etcd://HOST:PORT[,...]; "
            f"found {store or controller[0]!r}"
        )
    if store and found:
        flags = {name for name in ("config_store", "controller", "join") if is_flag(name)}
        if len(flags) != 1:
            raise ConfigurationError(
                f"expected controllers or --config-store, found both: {', '.join(found)} and {store}"
            )
        found = (store,) if flags == {"config_store"} else found
    elif store:
        found = (store,)
    return configuration_addresses(found or _live_controllers() or (DEFAULT_CONTROLLER,))


def addresses_if_any(controller: tuple[str, ...]) -> tuple[str, ...]:
    """Returns what `addresses` does, but nothing where neither a flag, a variable nor a live run names a cluster.

    Raises:
        ConfigurationError: as `addresses`.
    """
    from adamctl.launch.live_runs import live_runs, state_folder

    named = controller or config_store() or click.get_current_context().meta.get(_RUN)
    ready = [run for run in live_runs(state_folder(os.environ)) if run.controllers]
    return addresses(controller) if named or len(ready) == 1 else ()


def live_run(wanted: str | None, controller: tuple[str, ...]) -> LiveRun | None:
    """Returns the run of this machine that this command is about; None if it is about another cluster.

    `wanted` is the run's name as given, None if none was given. An explicit address means another cluster.

    Raises:
        ConfigurationError: several runs match.
    """
    from adamctl.launch.live_runs import state_folder, the_live_run

    if controller or config_store():
        return None
    return the_live_run(state_folder(os.environ), wanted or "", click.get_current_context().command_path)


def _live_controllers() -> tuple[str, ...]:
    """Returns the controllers of the run of this machine that this command is about, if it can be about one."""
    context = click.get_current_context(silent=True)
    if context is None or _RUN not in context.meta:
        return ()
    from adamctl.launch.live_runs import state_folder, the_live_run

    wanted = str(context.meta[_RUN])
    flag = "" if any(each.name == "live_run" for each in context.command.params) else " --run"
    run = the_live_run(state_folder(os.environ), wanted, f"{context.command_path}{flag}")
    if run is None and wanted:
        raise ConfigurationError(f"no run {wanted!r} is in progress on this machine; adamctl run list shows all runs")
    if run is not None and not run.controllers:
        raise UnreachableError(f"run {run.name} is still starting; its controller is not ready yet; try again")
    return () if run is None else run.controllers


def config_store() -> str:
    """Returns this command's --config-store; empty if there is none."""
    context = click.get_current_context(silent=True)
    return "" if context is None else str(context.meta.get(_STORE, ""))


def _remember_store(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_STORE] = value or ""


def is_flag(name: str) -> bool:
    """Returns whether an option of the running command stands on its command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source == click.core.ParameterSource.COMMANDLINE
