"""What a role's process does to itself, apart from its driver."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

AGAIN = """
import os, sys
from adamctl.roles.process import restart_process
if "STARTED" in os.environ:
    os._exit(7)
os.environ["STARTED"] = "once"
sys.stdout = open("/dev/full", "w")
sys.stdout.write("what does not fit on the disk")
restart_process(None)
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full disk to try")
def test_a_process_restarts_though_what_it_printed_cannot_be_written() -> None:
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (7, "")
