"""OpenCV's part of `adamctl bench data --only warps`: affine and elastic distortion of one image after another.

Runs by its path in any interpreter that has OpenCV and NumPy; nothing else is imported. Reads one JSON object per line
from stdin and answers each with one on stdout:

    {"do": "prepare", "size": 28, "rotate": 10, "scale": 0.1, "translate": 2, "sigma": 4, "alpha": 34}
        -> {"ok": true, "opencv_version": "..."}
    {"do": "run", "seconds": 2.0}
        -> {"images": ..., "seconds": ...}

An image is distorted as Simard et al. 2003 say: a Gaussian blur over random numbers for both axes, the affine map
added, and the image read at the places by `remap`, bilinear. One thread.
"""

from __future__ import annotations

import json
import math
import sys
import time
from typing import Any

import cv2
import numpy as np

_cv: Any = cv2  # its type stubs know fewer arguments than it takes


class Distorter:
    """Distorts one image, each time by new random numbers."""

    def __init__(self, request: dict[str, Any]) -> None:
        _cv.setNumThreads(1)
        size = request["size"]
        self.request = request
        self.random = np.random.default_rng(1)
        self.image = self.random.random((size, size), np.float32)
        columns, rows = np.meshgrid(np.arange(size, dtype=np.float32), np.arange(size, dtype=np.float32))
        self.pixels = np.ascontiguousarray(np.stack((columns, rows), axis=-1))
        self.centre = (size - 1) / 2

    def distort(self) -> np.ndarray[Any, Any]:
        asked, size = self.request, self.request["size"]
        turn, larger, right, down = self.random.uniform(-1, 1, 4)
        angle, scale = math.radians(asked["rotate"] * turn), 1 / (1 + asked["scale"] * larger)
        a, b, middle = scale * math.cos(angle), scale * math.sin(angle), self.centre
        x, y = middle + asked["translate"] * right, middle + asked["translate"] * down
        matrix = np.array([[a, b, middle - a * x - b * y], [-b, a, middle + b * x - a * y]])
        field = self.random.random((size, size, 2), np.float32)
        field -= np.float32(0.5)
        field = _cv.GaussianBlur(field, (0, 0), asked["sigma"], borderType=_cv.BORDER_CONSTANT)
        places = _cv.transform(self.pixels, matrix)
        places += np.float32(2 * asked["alpha"]) * field
        distorted: np.ndarray[Any, Any] = _cv.remap(
            self.image, places, None, _cv.INTER_LINEAR, borderMode=_cv.BORDER_CONSTANT
        )
        return distorted


def main() -> None:
    distorter: Distorter | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "prepare":
            distorter = Distorter(request)
            distorter.distort()
            print(json.dumps({"ok": True, "opencv_version": _cv.__version__}), flush=True)
            continue
        assert distorter is not None
        images, begun_s = 0, time.perf_counter()
        while time.perf_counter() - begun_s < request["seconds"]:
            distorter.distort()
            images += 1
        print(json.dumps({"images": images, "seconds": time.perf_counter() - begun_s}), flush=True)


if __name__ == "__main__":
    main()
