"""`adamctl doctor`: what this machine offers, and what to do about what is missing."""

from __future__ import annotations

import click

from adamctl.cli import options
from adamctl.cli.output import echo, print_json


@click.command("doctor")
@options.controller_option
@options.token_option
@options.json_option
def command(controller: tuple[str, ...], token: str, as_json: bool) -> int:
    """Check this machine. Exit code 0: all is well; 4: something works worse than it could; 1: something is broken.

    With --controller also that cluster is checked: whether copies of a part of a model have to share a machine.
    """
    from adamctl.cli.doctor_checks import Finding, all_findings

    findings = all_findings()
    if controller:
        from adamctl.net import loop

        lines = loop.run(_sharing(options.addresses(controller), token))
        findings += [Finding("copies", "slow", *line.split("; ", 1)) for line in lines]
        findings += [] if lines else [Finding("copies", "ok", "no job's copies have to share a failure domain")]
    if as_json:
        print_json({"findings": [finding.values() for finding in findings]})
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            echo(f"{finding.state:<4}  {finding.name:<{width}}  {finding.found}")
            if finding.advice:
                echo(f"{'':<4}  {'':<{width}}  -> {finding.advice}")
    states = {finding.state for finding in findings}
    return 1 if "bad" in states else 4 if "slow" in states else 0


async def _sharing(addresses: tuple[str, ...], token: str) -> list[str]:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.cli.cluster.copies import sharing
    from adamctl.roles.configuration import nodes

    async with ClusterAccess(addresses, token) as cluster:
        _, entries = await cluster.store.read("/jobs/")
        return sharing(entries, await nodes(cluster.store, "ps"))
