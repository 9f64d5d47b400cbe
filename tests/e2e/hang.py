"""Makes compute threads of one worker hang, in real processes, and shortens the patience of leads.

A folder with a file `sitecustomize.py` that calls `plant` is given to a run as PYTHONPATH.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

LEAST_S = 2.0
FIRST_S = 60.0
LINES = "from tests.e2e.hang import plant\nplant({folder!r})\n"


def environment(folder: Path) -> dict[str, str]:
    """Returns the environment of a run whose workers look for files `hang-NODE` in a folder."""
    (folder / "sitecustomize.py").write_text(LINES.format(folder=str(folder)))
    root = Path(__file__).resolve().parent.parent.parent
    return {"PYTHONPATH": f"{folder}:{root}"}


def plant(folder: str) -> None:
    """In a worker: the next flight of a thread that finds the file `hang-NODE` never ends. The file is used up."""
    if "worker" not in sys.orig_argv or "start" not in sys.orig_argv:
        return
    from adamctl.roles.worker.core.open_flights import Patience
    from adamctl.roles.worker.partition import work
    from adamctl.roles.worker.partition.threads import FlightThreads

    node = sys.orig_argv[sys.orig_argv.index("--name") + 1]
    flag, advance = Path(folder) / f"hang-{node}", FlightThreads._advance

    def advance_or_hang(self: FlightThreads, *given: Any) -> tuple[bool, bool]:
        if flag.exists():
            flag.unlink()
            threading.Event().wait()
        return advance(self, *given)

    work.PATIENCE = Patience(least_s=LEAST_S, first_s=FIRST_S)
    FlightThreads._advance = advance_or_hang  # type: ignore[method-assign]
