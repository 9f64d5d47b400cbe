"""What every benchmark reports besides its figures: the machine, the versions and the JSON around the results."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from adamctl.kernels.threads import available_cores

SCHEMA_VERSION = 1


def describe_machine() -> dict[str, Any]:
    """Returns what a reader needs to judge a figure: processor, cores available to this process, memory, load."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": _processor_name(),
        "architecture": platform.machine(),
        "cores": available_cores(),
        "memory_bytes": memory_bytes,
        "system": f"{platform.system()} {platform.release()}",
        "load_1_minute": round(os.getloadavg()[0], 2),
    }


def _processor_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or "unknown"
    return platform.processor() or "unknown"


def describe_versions(packages: Sequence[str]) -> dict[str, str]:
    """Returns the versions of Python and of the named packages; "missing" for packages that are not installed."""
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "missing"
    return versions


def make_report(bench: str, packages: Sequence[str], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the object that `adamctl bench NAME --json` prints."""
    return {
        "schema_version": SCHEMA_VERSION,
        "bench": bench,
        "machine": describe_machine(),
        "versions": describe_versions(packages),
        "results": list(results),
    }
