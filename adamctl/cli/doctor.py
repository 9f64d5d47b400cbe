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
    """Check this machine, and of a cluster whether its nodes' versions work together and copies share no machine.

    The cluster is that of --controller, --config-store or --run; without them, of the only run in progress here, if
    there is one. Exit code 0: all is well; 4: something works worse than it could; 1: something is broken.
    """
    from adamctl.cli.doctor_checks import all_findings
    from adamctl.cli.doctor_cluster import cluster_findings

    addresses = options.addresses_if_any(controller)
    findings = [*all_findings(), *(cluster_findings(addresses, token) if addresses else ())]
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
