"""Roles that other packages add through the entry point group `adamctl.roles`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

GROUP = "adamctl.roles"


def summaries(exclude: frozenset[str]) -> dict[str, str]:
    """Returns name -> summary of the roles that are not built in.

    Their descriptions are imported, which is cheap by contract; one that fails to import is listed with the reason, so
    that a broken package is visible and harms nothing else.
    """
    return {point.name: _summary(point) for point in entry_points(group=GROUP) if point.name not in exclude}


def _summary(point: EntryPoint) -> str:
    try:
        return str(point.load().summary)
    except Exception as error:
        return f"(cannot be loaded from {point.value}: {error})"
