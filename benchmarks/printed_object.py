"""What benchmarks that run other programs share: they print one JSON object, or end with an error."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

ADAMCTL = (sys.executable, "-m", "adamctl")


def printed_object(command: Sequence[str]) -> dict[str, Any]:
    """Returns the object that a command prints. Ends with what it said on stderr if it failed."""
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(finished.stderr)
    result: dict[str, Any] = json.loads(finished.stdout)
    return result
