"""`adamctl attach RUN`: the live view of a run in progress on this machine, from another terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote

import click

from adamctl.cli import completing, options
from adamctl.cli.output import echo
from adamctl.errors import ConfigurationError, RunFailedError


@click.command("attach")
@click.argument("run", default="", shell_complete=completing.live_runs)
@options.token_option
@click.option("--plain", is_flag=True, help="Plain progress lines even on a terminal.")
def command(run: str, token: str, plain: bool) -> int:
    """Show the live view of RUN: a run folder, NAME/NNN or NAME; by default the only run in progress here.

    Ctrl-C, or closing this terminal, ends the view but not the run, wherever the run was started.
    """
    from adamctl.launch.attaching import follow
    from adamctl.launch.live_runs import state_folder, the_live_run
    from adamctl.launch.run_certificates import run_transport
    from adamctl.launch.run_token import read_token
    from adamctl.live.reporter import choose_reporter
    from adamctl.live.view import closing_lines
    from adamctl.net import loop
    from adamctl.net.handshake import make_hello

    state = state_folder(os.environ)
    found = the_live_run(state, run, "adamctl attach")
    if found is None:
        wanted = f"no run {run!r} is in progress" if run else "no run is in progress"
        raise ConfigurationError(f"{wanted} on this machine; adamctl run list shows all runs")
    reporter = choose_reporter(sys.stderr, plain=plain)
    hello = make_hello("front", f"attach-{os.getpid()}", 0, token or read_token(Path(found.folder)))
    try:
        progress = loop.run(follow(found, state, run_transport(Path(found.folder)), hello, reporter))
    except KeyboardInterrupt:
        reporter.close()
        echo(f"{found.name} keeps running; adamctl attach {quote(found.name)} shows it again", err=True)
        return 0
    finally:
        reporter.close()
    if progress is None or not progress.final:
        raise RunFailedError(f"{found.name} has ended; adamctl run show {quote(found.folder)} shows how")
    if progress.state == "failed":
        raise RunFailedError(f"the run failed: {progress.failure}")
    folder = Path(found.folder)
    for line in closing_lines(progress, found.folder, [f"adamctl eval {quote(str(folder))}"]):
        echo(line, err=True)
    return 0 if progress.state == "ended" else 1
