"""A role's description can be loaded without the role."""

from __future__ import annotations

import subprocess
import sys


def test_the_descriptions_of_roles_are_light() -> None:
    code = "import sys, adamctl.roles.controller.role; print([m for m in ('asyncio', 'msgspec') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
