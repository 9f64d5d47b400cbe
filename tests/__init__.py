"""Tests start runs that are noted in a state folder of this process, not in the user's."""

import atexit
import os
import shutil
import tempfile

_STATE = tempfile.mkdtemp(prefix="tests-of-adamctl-")
os.environ["ADAMCTL_STATE"] = _STATE
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)
