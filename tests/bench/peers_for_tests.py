"""A stand-in for another system: an "interpreter" that ignores the program it is given and runs a few lines instead."""

from __future__ import annotations

import sys
from pathlib import Path

STEADY = """
import json, os, sys
if os.environ.get("NOT_INSTALLED"):
    raise SystemExit("ModuleNotFoundError: No module named 'torch'")
for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "train":
        works = not request["compile"]
        answer = {"ok": works, "torch_version": "0.0", "error": "no compiler"}
        factor = request["batch"] * request["threads"]
    elif request["do"] == "kernel":
        works = "rule" in request["case"]
        answer = {"ok": works, "torch_version": "0.0", "error": "nothing like it"}
        factor = 1
    else:
        answer = {"calls": 10, "examples": 10 * factor, "seconds": 0.01}
    print(json.dumps(answer), flush=True)
"""


def interpreter(folder: Path, program: str = STEADY) -> str:
    """Returns the path of an executable that runs `program` whatever it is told to run."""
    script = folder / "program.py"
    script.write_text(program)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}"\n')
    path.chmod(0o755)
    return str(path)
