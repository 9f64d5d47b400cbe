"""Audits `.ci/requirements.lock`: offline against pyproject's floors, then by pip-audit where its service answers.

    python .ci/audit.py

Made anew with `uv pip compile pyproject.toml --extra test --extra audit --universal --python-version 3.11
--generate-hashes --no-header -o .ci/requirements.lock`, by hand and not in CI, so that a new version is read before it
is taken.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / ".ci" / "requirements.lock"
EXTRAS_LEFT_OUT = {"docs", "ray", "torch"}  # no test of the quick suite needs them
KNOWN_HOLE = f"pillow==9.0.0 --hash=sha256:{'0' * 64}\n"
"""A version of which every service knows holes: one that finds none there has not been asked, but a mirror."""
SERVICE_S = 120.0


class Locked(NamedTuple):
    """One version of a package in the lock."""

    name: str
    version: tuple[int, ...]
    hashes: int


def locked(text: str) -> list[Locked]:
    """Returns what a lock holds. Raises ValueError for a line that is no pinned version or hash of one."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        entry = line.split("#")[0].strip()
        if not entry:
            continue
        match = re.match(r"([A-Za-z0-9._-]+)==([0-9]+(?:\.[0-9]+)*)\b", entry)
        if match is None:
            raise ValueError(f"expected NAME==VERSION with hashes, found {entry[:80]!r}")
        hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}\b", entry)
        found.append(Locked(plain(match[1]), version(match[2]), len(hashes)))
    return found


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def floors(project: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Returns package -> the least version that pyproject takes, of its dependencies and those of its extras."""
    extras = project.get("optional-dependencies", {})
    assert isinstance(extras, dict) and isinstance(project["dependencies"], list)
    kept = (wanted for name, wanted in extras.items() if name not in EXTRAS_LEFT_OUT)
    found: dict[str, tuple[int, ...]] = {}
    for text in [*project["dependencies"], *(text for wanted in kept for text in wanted)]:
        match = re.match(r"([A-Za-z0-9._-]+)>=([0-9.]+)", text)
        if match is not None:  # else it names extras of our own
            name = plain(match[1])
            found[name] = max(found.get(name, ()), version(match[2]))
    return found


def problems(lock: str, project: dict[str, object]) -> list[str]:
    """Returns what is wrong with a lock, offline: missing hashes, missing packages, versions beneath a floor."""
    entries = locked(lock)
    found = [f"{entry.name} has no hash" for entry in entries if not entry.hashes]
    for name, floor in sorted(floors(project).items()):
        versions = [entry.version for entry in entries if entry.name == name]
        if not versions:
            found.append(f"{name} is not in the lock")
        found += [f"{name} {dotted(one)} is beneath {dotted(floor)}, the floor" for one in versions if one < floor]
    return found


def dotted(parts: tuple[int, ...]) -> str:
    return ".".join(map(str, parts))


def holes(requirements: Path) -> list[str] | None:
    """Returns what pip-audit's service knows of these versions, None if it does not answer."""
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "-f", "json", "-r"]
    try:
        done = subprocess.run([*command, str(requirements)], capture_output=True, text=True, timeout=SERVICE_S)
        listed = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return [f"{one['name']} {one['version']}: {hole['id']}" for one in listed for hole in one.get("vulns", ())]


def main() -> int:
    text = LOCK.read_text()
    found = problems(text, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder) / "known.txt"
        known.write_text(KNOWN_HOLE)
        if holes(known):
            online = holes(LOCK)
            found += ["the service stopped answering"] if online is None else online
            said = "pip-audit's service asked"
        else:
            said = "pip-audit's service does not answer here; versions compared with the floors of pyproject alone"
    for problem in found:
        print(f"audit: {problem}")
    print(f"audit: {len(locked(text))} versions, {len(found)} problems; {said}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
