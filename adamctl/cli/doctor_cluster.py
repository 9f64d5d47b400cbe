"""The checks of `adamctl doctor` that ask a cluster: versions that work together, copies that share no machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adamctl.cli.cluster.versions import Version, grouped, too_far_apart, version_of, versions_of
from adamctl.cli.doctor_checks import Finding
from adamctl.errors import AdamctlError

NAME = "versions"


def cluster_findings(addresses: Sequence[str], token: str) -> list[Finding]:
    """Asks the nodes of a cluster for their versions, and its controllers where copies are."""
    from adamctl.net import loop

    try:
        cluster = loop.run(_read(tuple(addresses), token))
        sharing = loop.run(_sharing(tuple(addresses), token))
    except AdamctlError as error:
        return [Finding("cluster", "bad", str(error), "adamctl status shows what can be reached")]
    copies = [Finding("copies", "slow", *line.split("; ", 1)) for line in sharing]
    none = Finding("copies", "ok", "no job's copies have to share a failure domain")
    return [version_finding(cluster), *(copies or (none,))]


def version_finding(cluster: dict[str, Any]) -> Finding:
    """Returns what there is to say of the versions in a cluster."""
    versions = versions_of(cluster)
    told = {version for version in versions.values() if version is not None}
    problem = too_far_apart(told)
    if problem:
        return Finding(
            NAME, "slow", f"{problem}: {grouped(versions)}", "upgrade one release at a time: docs/upgrades.md"
        )
    if len(told) > 1 or (told and None in versions.values()):
        return Finding(
            NAME, "ok", grouped(versions), "an upgrade is under way: finish it, in the order of docs/upgrades.md"
        )
    own = _own()
    if told and too_far_apart((own, *told)):
        text = f"this command is of {own.shown()}; {grouped(versions)}"
        return Finding(NAME, "slow", text, "use a command of a version that is at most one release from the cluster's")
    return Finding(NAME, "ok", grouped(versions) if versions else "no node answers")


def _own() -> Version:
    from adamctl.roles.common_status import version_status

    found = version_of({"versions": version_status()})
    assert found is not None
    return found


async def _read(addresses: tuple[str, ...], token: str) -> dict[str, Any]:
    from adamctl.cli.cluster.state import ClusterReader

    async with ClusterReader(addresses, token) as reader:
        return await reader.read_all()


async def _sharing(addresses: tuple[str, ...], token: str) -> list[str]:
    from adamctl.cli.cluster.access import ClusterAccess
    from adamctl.cli.cluster.copies import sharing
    from adamctl.roles.configuration import nodes

    async with ClusterAccess(addresses, token) as cluster:
        _, entries = await cluster.store.read("/jobs/")
        return sharing(entries, await nodes(cluster.store, "ps"))
