"""`adamctl metrics serve`: the metrics of a cluster, for Prometheus."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence

import click

from adamctl.cli import options
from adamctl.cli.lazy import TableGroup
from adamctl.cli.number_types import ABOVE_ZERO
from adamctl.cli.output import echo

PORT = 9464

command = TableGroup(
    name="metrics",
    help="Show the metrics of a cluster to Prometheus.",
    context_settings={"help_option_names": ["-h", "--help"]},
    table={
        "serve": ("adamctl.cli.metrics:serve", "Serve /metrics over HTTP until Ctrl-C"),
        "list": ("adamctl.cli.metrics:list_", "Show every metric, its labels and what it means"),
    },
)


@click.command("list")
def list_() -> None:
    """Show every metric, its labels and what it means, as a table in Markdown."""
    from adamctl.metrics.catalogue import table

    echo(table())


@click.command("serve")
@options.live_run_argument
@options.controller_option
@options.token_option
@click.option("--bind", default="127.0.0.1", show_default=True, help="Host to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="TCP port to listen on; 0 for any free one.",
)
@click.option("--open", "open_to_others", is_flag=True, help="Let --bind be an address that other machines reach.")
@click.option(
    "--deadline",
    "node_deadline_s",
    type=ABOVE_ZERO,
    default=0.5,
    show_default=True,
    help="Seconds that a scrape waits for nodes that do not answer.",
)
@click.option("--ready-fd", type=int, hidden=True)
@click.option("--lifeline-fd", type=int, hidden=True)
def serve(
    controller: tuple[str, ...],
    token: str,
    bind: str,
    port: int,
    open_to_others: bool,
    node_deadline_s: float,
    ready_fd: int | None,
    lifeline_fd: int | None,
) -> int:
    """Serve the metrics of a whole cluster at http://127.0.0.1:9464/metrics until Ctrl-C.

    Each scrape asks every node for its status; one that does not answer in time is shown as adamctl_node_up 0. HTTP
    asks for no token: whoever reaches the address can read the metrics. docs/metrics.md lists them.
    """
    from adamctl.metrics.serving import check_host
    from adamctl.net import loop
    from adamctl.roles.process import ReadyReport, watch_lifeline

    addresses = options.addresses(controller)
    check_host(bind, open_to_others, "--open")
    if lifeline_fd is not None:
        watch_lifeline(lifeline_fd, lambda: os.kill(os.getpid(), signal.SIGTERM), lambda: os._exit(1))
    report = ReadyReport(ready_fd, "metrics", "metrics")

    def serving(url: str) -> None:
        address = f"tcp://{url.removeprefix('http://').partition('/')[0]}"
        report.serving((address,), 0, (f"metrics at {url}",))

    return loop.run(_serve(addresses, token, bind, port, node_deadline_s, serving))


async def _serve(
    addresses: Sequence[str], token: str, host: str, port: int, node_deadline_s: float, serving: Callable[[str], None]
) -> int:
    import asyncio

    from adamctl.launch.joining import find_controller
    from adamctl.launch.live_runs import state_folder
    from adamctl.launch.run_certificates import transport_for
    from adamctl.launch.run_token import token_for
    from adamctl.metrics.serving import metrics_hello, serving_metrics
    from adamctl.roles.process import signals_to

    state = state_folder(os.environ)
    hello, transport = metrics_hello(token or token_for(addresses, state)), transport_for(addresses, state)
    await find_controller(transport, addresses, hello(), lambda text: echo(text, err=True), flag="--controller")
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    async with serving_metrics(
        addresses, hello, host, port, node_deadline_s=node_deadline_s, transport=transport
    ) as url:
        serving(url)
        with signals_to(end):
            return 128 + await ended
