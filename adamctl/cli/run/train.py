"""`adamctl train EXP.toml`: one whole run, from starting its roles to a trained model and a clean end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import join as command_line
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from adamctl.cli import completing, hosts_options, options
from adamctl.cli.output import echo, print_json
from adamctl.errors import ConfigurationError
from adamctl.net.address import TLS_VARIABLE

if TYPE_CHECKING:
    from adamctl.launch.front import Outcome
    from adamctl.launch.hosts.asked import HostsAsked
    from adamctl.launch.train import TrainOptions
    from adamctl.live.reporter import Reporter


@click.command("train")
@options.experiment_options
@click.option(
    "--join", multiple=True, metavar="ADDR", help="Run on this controller's cluster instead of starting roles here."
)
@options.join_store_option
@hosts_options.hosts_options
@click.option(
    "--bind",
    default="",
    metavar="HOST",
    help="With --hosts or --join: address on which this machine listens; by default, with --hosts all of them, with "
    "--join the one towards the controller.",
)
@click.option(
    "--advertise",
    default="",
    metavar="HOST",
    help="With --hosts or --join: host at which others reach this machine; by default --bind.",
)
@click.option(
    "--port",
    default=0,
    type=click.IntRange(0, 65535),
    help="With --hosts: port of this machine that agents dial; by default any free one.",
)
@click.option(
    "--resume",
    default="none",
    metavar="auto|RUN",
    shell_complete=completing.resumed,
    help="Continue from the newest checkpoint of this name, or of RUN: a checkpoint, a run folder, NAME/NNN or NAME, "
    "or a URL (train.checkpoint_url). "
    "--passes may be a new number: the learning rate then follows its schedule stretched over that many passes. "
    "A finished run continues only with more passes.",
)
@options.runs_option
@options.token_option
@options.json_option
@options.log_format_option
@click.option("--plain", is_flag=True, help="Print plain progress lines even on a terminal.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve the metrics of the cluster to Prometheus at 127.0.0.1 and this port; 0 for any free one.",
)
@click.option(
    "--tls",
    is_flag=True,
    help="With --hosts: speak TLS on this machine's loopback too; beyond it that is so without a flag.",
)
@click.option("--detach", is_flag=True, help="Return once it trains; it continues without this terminal. See attach.")
@click.option("--detached-fd", type=int, hidden=True)
def command(
    experiment: str,
    settings: tuple[str, ...],
    data: tuple[str, ...],
    join: tuple[str, ...],
    bind: str,
    advertise: str,
    port: int,
    resume: str,
    run_dir: str,
    token: str,
    as_json: bool,
    log_format: str,
    plain: bool,
    metrics_port: int | None,
    tls: bool,
    detach: bool,
    detached_fd: int | None,
    **flags: Any,
) -> int:
    """Train the network of EXP.toml.

    Starts every role on this machine and ends it again; with --hosts, on many machines, each with an agent; with --join
    or --config-store, uses the servers and workers of a running cluster. Ctrl-C, or closing the terminal, writes a
    checkpoint and stops; a second Ctrl-C stops at once. With --detach the run continues in the background: adamctl
    attach shows it, adamctl run stop ends it.
    """
    on = {name: flags.pop(name) for name in hosts_options.HOSTS_FLAGS}
    loaded = options.load(experiment, settings, data, flags)
    hosts = hosts_options.hosts_asked(on, loaded.experiment.cluster.workers)
    _check_tls(hosts, joins=bool(join or options.config_store()), tls=tls)
    joins = options.addresses(join) if join or options.config_store() else ()
    if hosts is not None and joins:
        raise ConfigurationError("--hosts starts a cluster and --join uses one: give one of them")
    if hosts is None and port:
        raise ConfigurationError("--port: expected with --hosts or --on; nobody dials a run on this machine")
    if detach:
        from adamctl.cli.run.detach import detach as start

        return start(sys.argv[1:], as_json, loaded.experiment.name)
    from adamctl.launch.train import TrainOptions, train

    reporter, begun = _reporter(detached_fd, plain=plain, log_format=log_format)
    chosen = TrainOptions(
        join=joins,
        resume=resume,
        runs=Path(run_dir),
        environment={**os.environ, "ADAMCTL_LOG_FORMAT": log_format},
        token=token,
        readings=not plain and log_format == "text" and sys.stderr.isatty(),
        hosts=hosts,
        detached=detached_fd is not None,
        begun=begun,
        metrics_port=metrics_port,
        bind=bind,
        advertise=advertise,
        port=port,
        tls=tls or (hosts is not None and options.is_flag("tls_dir")),
    )
    try:
        outcome, folder = train(loaded.experiment, chosen, reporter)
        if outcome.signal == signal.SIGTERM:  # whoever sent it may send it again before the report is written
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    finally:
        reporter.close()
    if as_json:
        print_json(_result(outcome, folder, loaded.experiment.seed))
    return _report(outcome, folder, resume, chosen, log_format)


def _reporter(detached_fd: int | None, *, plain: bool, log_format: str) -> tuple[Reporter, Callable[[Path], None]]:
    """Returns who shows the run, and what to call with its folder when that is made."""
    if detached_fd is None:
        from adamctl.live.reporter import choose_reporter

        return choose_reporter(sys.stderr, plain=plain, log_format=log_format), lambda folder: None
    from adamctl.launch.detaching import Announcing

    announcing = Announcing(detached_fd, log_format)
    return announcing, announcing.begun


def _check_tls(hosts: HostsAsked | None, *, joins: bool, tls: bool) -> None:
    """Raises ConfigurationError: what was said of TLS does not fit the run."""
    if tls and hosts is None:
        raise ConfigurationError("--tls: expected with --hosts; roles on one machine use no network")
    if options.is_flag("insecure") and (tls or options.is_flag("tls_dir")):
        raise ConfigurationError("--insecure says that there is no TLS: leave it out, or --tls and --tls-dir")
    if not options.is_flag("tls_dir") or joins:
        return
    if hosts is None:
        raise ConfigurationError(
            "--tls-dir: a run that starts its own roles on this machine has a token and no certificates; give --join "
            "the cluster whose certificate it is, or leave --tls-dir out"
        )
    from adamctl.launch.places.engines import BY_HAND

    if hosts.engine != BY_HAND:
        raise ConfigurationError(
            f"--tls-dir: the agents that --on {hosts.engine} starts have no certificates of your authority; leave it "
            "out, since the run makes certificates of its own"
        )


def _result(outcome: Outcome, folder: Path, seed: int) -> dict[str, Any]:
    """Returns what `--json` prints: the run's figures, its folder and the command's exit code."""
    from adamctl.launch.run_folder import checkpoints
    from adamctl.roles.coordinator.checkpoint.manifest import best

    progress = outcome.progress
    result = dict(progress.result or {}) if progress is not None else {}
    result |= {"run_folder": str(folder.absolute()), "seed": seed, "exit_code": outcome.exit_code}
    if result.get("best") is not None:
        kept = best(checkpoints(folder))
        result["best"] = {**result["best"], "checkpoint": None if kept is None else str(kept[0].absolute())}
    if outcome.message:
        result["error"] = outcome.message
    return result


def _report(outcome: Outcome, folder: Path, resume: str, chosen: TrainOptions, log_format: str) -> int:
    """Prints the result for a person to stderr; the first cause of a failure comes last."""
    from adamctl.live.view import closing_lines
    from adamctl.roles.log import json_line

    def say(level: str, text: str) -> None:
        with suppress(OSError):  # a full disk under its log; how the run ended is told by the exit code, too
            echo(json_line(level, "front", "front", text.strip()) if log_format == "json" else text, err=True)

    progress = outcome.progress
    if progress is not None and progress.final and not outcome.message:
        flags = _addresses_again(chosen)
        flags += [] if chosen.hosts is None else chosen.hosts.flags_again()
        flags += [f"--{flag}" for flag in ("insecure", "tls") if options.is_flag(flag)]
        flags += ["--tls-dir", os.environ[TLS_VARIABLE]] if options.is_flag("tls_dir") else []
        for line in closing_lines(progress, str(folder), _next_commands(outcome, folder, resume, chosen.join, flags)):
            say("INFO", line)
    if outcome.message:
        say("ERROR", f"adamctl: error: {outcome.message}")
    return outcome.exit_code


def _addresses_again(chosen: TrainOptions) -> list[str]:
    """Returns the flags of a command that listens where this one did."""
    where = (("--bind", chosen.bind), ("--advertise", chosen.advertise), ("--port", str(chosen.port or "")))
    return [part for flag, given in where if given for part in (flag, given)]


def _next_commands(
    outcome: Outcome, folder: Path, resume: str, join: Sequence[str] = (), where: Sequence[str] = ()
) -> list[str]:
    """Returns what to type next; a run that had no checkpoint yet starts over.

    A run that was interrupted or told to stop continues with the same command, on the cluster that it had joined.
    """
    from adamctl.launch.run_folder import DEFAULT_BASE, EXPERIMENT, checkpoints
    from adamctl.roles.controller.etcd.url import is_etcd

    stopped = outcome.signal or (outcome.progress is not None and outcome.progress.state == "stopped")
    if not stopped:
        logs = f"adamctl logs {quote(str(folder))}"
        return [f"adamctl eval {quote(str(folder))}", logs] if checkpoints(folder) else [logs]
    command, base = ["adamctl", "train", str(folder / EXPERIMENT)], folder.parent.parent
    place = str(folder) if checkpoints(folder) else resume
    if place != "none":
        command += ["--resume", place]
    command += [part for address in join for part in ("--config-store" if is_etcd(address) else "--join", address)]
    command += where
    return [command_line([*command, *(() if base == DEFAULT_BASE else ("--run-dir", str(base)))])]
