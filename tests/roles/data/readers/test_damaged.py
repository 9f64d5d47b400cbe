"""Damaged files through every reader: read, or refused by a typed error; no crash, bounded memory and time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from adamctl.config.formats import BUILT_IN
from tests.roles.data.readers.damage import VARIANTS

pytest.importorskip("PIL.Image", reason="needs the image extra")
pytest.importorskip("cv2", reason="needs the opencv extra")
ROOT = Path(__file__).parents[4]
GROWN_BYTES_MAX = 700 << 20
"""The largest image that is decoded, 33,554,432 pixels, takes a little less than this with Pillow."""
SEED = int(os.environ.get("DAMAGE_SEED", "21"))
FILES = 100_000


def run(folder: Path, count: int, *variants: str, first: int = 0, timeout_s: float = 120) -> Counter[str]:
    """Reads `count` damaged files of each variant in a process of its own and returns what came of them."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.roles.data.readers.damage", str(folder), str(SEED), str(first), str(count)]
    done = subprocess.run([*command, *variants], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    case = (folder / "case.txt").read_text() if (folder / "case.txt").exists() else "before the first case"
    assert done.returncode == 0, (
        f"seed {SEED}: the process ended with {done.returncode} at {case}: {done.stderr[-3000:]}"
    )
    found = json.loads((folder / "found.json").read_text())
    faults = [fault for variant in found["variants"].values() for fault in variant["faults"]]
    assert not faults, "\n".join(faults)
    assert found["grown_bytes"] < GROWN_BYTES_MAX, found["grown_bytes"]
    outcomes: Counter[str] = Counter()
    for variant in found["variants"].values():
        outcomes.update(variant["outcomes"])
    print(f"seed {SEED}: {dict(outcomes)}, {found['grown_bytes'] >> 20} MiB more memory")
    return outcomes


def test_every_format_is_damaged() -> None:
    assert {variant.split()[0] for variant in VARIANTS} == set(BUILT_IN) - {"digits"}


def test_300_damaged_files(tmp_path: Path) -> None:
    outcomes = run(tmp_path, -(-300 // len(VARIANTS)))
    assert outcomes["DamagedDataError"] > 100 and outcomes["read"] > 10 and outcomes["ConfigurationError"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_100000_damaged_files(tmp_path: Path, variant: str) -> None:
    count = -(-FILES // len(VARIANTS))
    outcomes = run(tmp_path, count, variant, timeout_s=1800)
    assert sum(outcomes.values()) == count and outcomes["DamagedDataError"] > count // 20
