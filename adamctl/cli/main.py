"""The `adamctl` command: finds subcommands and turns errors into one clear message and an exit code.

Exit codes: 0 ok, 1 the run failed, 2 usage or configuration, 3 unreachable or timed out, 4 degraded, 5 damaged data,
130 and 143 ended by a signal.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import click

from adamctl import __version__
from adamctl.cli.lazy import LazyGroup
from adamctl.cli.output import begin, echo, print_error
from adamctl.errors import EXIT_INTERRUPTED, AdamctlError

COMMANDS = {
    "train": ("adamctl.cli.run.train:command", "Train a network: start every role here, or join a cluster"),
    "attach": ("adamctl.cli.run.attach:command", "Watch a run of this machine"),
    "eval": ("adamctl.cli.model.evaluate:command", "Measure a checkpoint's accuracy on a split of the data"),
    "predict": ("adamctl.cli.model.predict:command", "Classify image files with a checkpoint"),
    "summary": (
        "adamctl.cli.model.summary:command",
        "Show layers, parameters, memory and bytes per push of an experiment",
    ),
    "plan": ("adamctl.cli.model.plan:command", "Compare partitions of a network with whole replicas"),
    "config": ("adamctl.cli.model.config:command", "Check an experiment, or show it with the origin of each value"),
    "init": ("adamctl.cli.model.init:command", "Write files to start from: a layer of your own and its test"),
    "layer": ("adamctl.cli.model.layer:command", "Check layers of your own"),
    "status": ("adamctl.cli.cluster.status:command", "Show the nodes and jobs of a cluster"),
    "top": ("adamctl.cli.cluster.top:command", "Watch the nodes and jobs of a cluster"),
    "shards": ("adamctl.cli.cluster.shards:command", "Show which parameter servers hold what, since when and why"),
    "events": ("adamctl.cli.cluster.events:command", "Show what happened to the copies of parameters"),
    "recover": ("adamctl.cli.cluster.recover:command", "Recover parameters when lost servers never come back"),
    "drain": ("adamctl.cli.cluster.drain:command", "Move everything off a parameter server, so that it can be stopped"),
    "run": ("adamctl.cli.run.run:command", "List, show, follow, stop and remove runs; stop the jobs of a cluster"),
    "plot": ("adamctl.cli.run.plot:command", "Show what runs measured, as a picture or in characters"),
    "logs": ("adamctl.cli.run.logs:command", "Print or follow the logs of a run"),
    "ckpt": ("adamctl.cli.checkpoint.ckpt:command", "List, save, verify, restore and prune the checkpoints of a run"),
    "export": (
        "adamctl.cli.export.export:export",
        "Write a checkpoint's parameters as safetensors, npz or a PyTorch file",
    ),
    "import": ("adamctl.cli.export.export:import_", "Make a checkpoint from the parameters in such a file"),
    "launch": ("adamctl.cli.launch.launch:command", "Print scripts for Slurm, Ray, Kubernetes and systemd"),
    "metrics": ("adamctl.cli.metrics:command", "Show the metrics of a cluster to Prometheus"),
    "bench": ("adamctl.cli.bench.bench:command", "Measure against the limits of this machine"),
    "completion": ("adamctl.cli.completion:command", "Print or install the script that completes commands in a shell"),
    "tls": ("adamctl.cli.tls.tls:command", "Make and renew certificates, for processes on several machines"),
    "version": ("adamctl.cli.version:command", "Show the versions of adamctl and of the libraries it computes with"),
    "doctor": ("adamctl.cli.doctor:command", "Check this machine and advise on problems"),
}

BUILT_IN_ROLES = {
    "controller": "Keep membership, jobs and bucket maps; start it first",
    "ps": "Hold shards of jobs' parameters, apply updates to them and send them out",
    "data": "Decode, shuffle and stream training examples ahead of need",
    "worker": "Train a replica of the model with many lock-free threads",
    "coordinator": "Run one job: hand out ranges, order evaluations and checkpoints",
    "host": "Start, watch and end the roles of a run on this machine",
}
"""Names and summaries repeat those of the roles' own descriptions, so that `--help` need not import them; a test
compares the two."""


class Application(LazyGroup):
    """The top command; lists roles that other packages register beside the built-in ones."""

    def sections(self) -> dict[str, dict[str, str]]:
        return {
            "Commands": {name: summary for name, (_, summary) in COMMANDS.items()},
            "Roles (adamctl ROLE start)": BUILT_IN_ROLES | self._third_party(),
        }

    def load(self, name: str) -> click.Command | None:
        if name in COMMANDS:
            return self.imported(COMMANDS[name][0])
        if name in BUILT_IN_ROLES or name in self._third_party():
            from adamctl.cli.role import role_group

            return role_group(name)
        return None

    def _third_party(self) -> dict[str, str]:
        from adamctl.roles.registry import summaries

        return summaries(exclude=frozenset(BUILT_IN_ROLES))


@click.command(
    cls=Application,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    help="Train deep networks on ordinary CPU machines: Project Adam and DistBelief as one program.",
    epilog="`adamctl data` also inspects, samples, prepares, verifies and fetches data. `adamctl controller` also "
    "backs up, restores, checks and replaces. `adamctl COMMAND --help` tells more.",
)
@click.version_option(__version__, prog_name="adamctl")
def application() -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code; messages go to stderr and, with `--json`, to stdout, too."""
    begin()
    tell = print_error if "--json" in arguments else _nothing_more
    try:
        result = application.main(list(arguments), prog_name="adamctl", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        tell(error.format_message(), error.exit_code)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except AdamctlError as error:
        echo(f"adamctl: error: {error}", err=True)
        tell(str(error), error.exit_code)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; discard the rest
        return 0
    except Exception as error:
        echo(traceback.format_exc(), err=True, nl=False)
        tell(f"{type(error).__name__}: {error}", 1)
        return 1


def _nothing_more(message: str, exit_code: int) -> None:
    """Prints nothing to stdout: a failed command without `--json`."""
