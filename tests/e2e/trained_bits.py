"""The parameters that a run ended with, and their hash."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from adamctl.roles.coordinator.checkpoint.manifest import find_latest
from adamctl.roles.ps.client.parameter_client import load_parameters


def parameters(run: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """Returns those of the last checkpoint in a run's folder."""
    checkpoint = find_latest(Path(run))
    assert checkpoint is not None, f"{run} has no checkpoint"
    return load_parameters(checkpoint)


def digest(run: str | Path) -> str:
    """Returns the SHA-256 of those, in the order of their names."""
    found = hashlib.sha256()
    for _, values in sorted(parameters(run).items()):
        found.update(values.tobytes())
    return found.hexdigest()
