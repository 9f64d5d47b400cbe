"""Puts this folder on the path, in any of pytest's import modes, so that tests below find `kernel_checks`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
