"""Ours takes turns with torchvision's fastest pipeline on the same files; what is missing is said."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from adamctl.bench.data.decode import BATCH, measure
from adamctl.bench.data.parts import DataSettings
from tests.bench.peers_for_tests import interpreter

image_module = pytest.importorskip("PIL.Image", reason="needs the image extra")
pytest.importorskip("cv2", reason="needs the opencv extra")

SLOW_PEER = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    files = request.get("files", [])
    whole = all(open(file, "rb").read(2) == b"\\xff\\xd8" for file in files)
    prepared = {"ok": whole, "pipelines_us": {"tensor": len(files)}}
    run = {"images": 2, "seconds": 1.0, "cpu_seconds": 0.5}
    print(json.dumps(prepared if request["do"] == "prepare" else run), flush=True)
"""


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A tar of so many JPEG files that a batch is left for training."""
    folder = tmp_path / "data" / "caltech-10"
    folder.mkdir(parents=True)
    with tarfile.open(folder / "caltech-10.tar", "w") as archive:
        for number in range(2 * BATCH):
            file = io.BytesIO()
            values = np.full((120, 150, 3), number, np.uint8)
            image_module.fromarray(values).save(file, "JPEG")
            info = tarfile.TarInfo(f"class-{number % 2}/{number}.jpg")
            info.size = file.tell()
            file.seek(0)
            archive.addfile(info, file)
    return tmp_path / "data"


def test_ratios_are_of_images_a_second(tmp_path: Path, photographs: Path) -> None:
    python = interpreter(tmp_path, SLOW_PEER)
    found = measure(DataSettings((str(photographs),), python, rounds=1, seconds=0.1), print)
    for name in ("decode-one", "decode-two"):
        assert found[name]["torchvision_images_per_s"] == 2 and found[name]["pipelines_us"] == {"tensor": 2 * BATCH}
        assert found[name]["ratio"] == pytest.approx(found[name]["ours_images_per_s"] / 2) and found[name]["ratio"] > 1
    assert found["decode-one"]["cpu_ratio"] > 1


def test_what_is_missing_is_said(tmp_path: Path, photographs: Path) -> None:
    without = interpreter(tmp_path, "raise SystemExit(\"No module named 'torchvision'\")")
    found = measure(DataSettings((str(photographs),), without, rounds=1), print)
    assert "torchvision" in found["decode-one"]["cannot"] and "ratio" not in found["decode-two"]
    found = measure(DataSettings((str(tmp_path),), interpreter(tmp_path, SLOW_PEER), rounds=1), print)
    assert "caltech-10" in found["decode-two"]["cannot"]
