"""`adamctl train --detach`: a run that continues after this command returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from adamctl.cli.output import echo, print_error, print_json
from adamctl.launch.detaching import ERROR, start_detached
from adamctl.launch.run_folder import run_name


def detach(arguments: Sequence[str], as_json: bool, experiment: str) -> int:
    """Starts a run with this command's arguments except `--detach`; prints where it is and how to watch it.

    `experiment` is the name that its runs have.
    """
    started = start_detached([argument for argument in arguments if argument not in ("--detach", "--json")])
    if started.exit_code is not None:  # its output before it had a folder went to this terminal
        if started.message:
            echo(started.message, err=True)
        if as_json:
            print_error(started.message.removeprefix(ERROR) or "the run could not be started", started.exit_code)
        return started.exit_code
    name = run_name(Path(started.folder)) if started.folder else ""
    if as_json:
        print_json({"run": name, "run_folder": started.folder, "pid": started.pid, "state": started.state})
    if name:
        said = f"{name} runs without this terminal, {started.state}"
        lines = {
            "run folder": started.folder,
            "watch it": f"adamctl attach {quote(name)}",
            "end it": f"adamctl run stop {quote(name)}",
        }
    else:
        said = "a run begins without this terminal: it still checks its data or compiles, and has no run folder yet"
        stop = f"adamctl run stop {quote(experiment)}"
        lines = {"find it": "adamctl run list", "end it": f"{stop}, once it is listed; until then: kill {started.pid}"}
    echo(said, err=True)
    for label, text in lines.items():
        echo(f"  {label:<14} {text}", err=True)
    return 0
