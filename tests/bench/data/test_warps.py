"""Ours takes turns with SciPy and with OpenCV in the peer's interpreter; what is missing is said."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from adamctl.bench.data.parts import DataSettings
from adamctl.bench.data.warps import measure
from tests.bench.peers_for_tests import interpreter

SLOW_PEER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"ok": True} if request["do"] == "prepare" else {"images": 2, "seconds": 1.0}), flush=True)
"""


def test_ratios_are_to_the_peers_time_of_an_image(tmp_path: Path) -> None:
    found = measure(DataSettings(peer_python=interpreter(tmp_path, SLOW_PEER), rounds=2, seconds=0.001), print)
    opencv = found["warps-opencv"]
    assert opencv["opencv_us"] == 5e5 and opencv["ratio"] == pytest.approx(5e5 / opencv["ours_us"])
    scipy = found["warps-scipy"]
    if importlib.util.find_spec("scipy") is None:
        assert scipy["cannot"] == "SciPy is not installed"
    else:
        assert scipy["ratio"] == pytest.approx(scipy["scipy_us"] / scipy["ours_us"])


def test_a_peer_without_opencv_is_said(tmp_path: Path) -> None:
    python = interpreter(tmp_path, "raise SystemExit(\"No module named 'cv2'\")")
    found = measure(DataSettings(peer_python=python, rounds=1, seconds=0.001), print)
    assert "cv2" in found["warps-opencv"]["cannot"] and "ratio" not in found["warps-opencv"]


@pytest.mark.skipif(importlib.util.find_spec("cv2") is None, reason="OpenCV is not installed")
def test_opencv_answers() -> None:
    found = measure(DataSettings(peer_python=sys.executable, rounds=1, seconds=0.001), print)
    assert found["warps-opencv"]["opencv_us"] > 0
