"""Tests start runs that are noted in a state folder of their own, not in the user's."""

import atexit
import os
import shutil
import tempfile

# A process that a test starts may be killed, and would leave a folder of its own behind.
if "ADAMCTL_TESTS_STATE" not in os.environ:
    _STATE = tempfile.mkdtemp(prefix="tests-of-adamctl-")
    os.environ["ADAMCTL_TESTS_STATE"] = os.environ["ADAMCTL_STATE"] = _STATE
    atexit.register(shutil.rmtree, _STATE, ignore_errors=True)
