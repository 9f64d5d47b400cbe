"""Regression beside scikit-learn's `MLPRegressor`: Friedman's first set, the same examples, network, passes and batch.

Ours has momentum and a one-cycle schedule, scikit-learn's its default, Adam at 0.001. Printed is the root mean squared
error of 1,000 test examples; that of the noise is 1.

    python benchmarks/friedman.py [--seeds 3] [--peer-python PYTHON_WITH_SCIKIT_LEARN]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from adamctl.bench.script import run_script

ROOT = Path(__file__).resolve().parent.parent
PEER = ROOT / "benchmarks" / "peers" / "sklearn_friedman.py"


def example() -> Any:
    """Returns examples/fit_friedman.py as a module."""
    described = importlib.util.spec_from_file_location("fit_friedman", ROOT / "examples" / "fit_friedman.py")
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable)
    options = parser.parse_args()
    ours = example()
    with tempfile.TemporaryDirectory() as folder:
        (x, y), (test_x, test_y) = ours.friedman(2000, 1), ours.friedman(1000, 2)
        file = Path(folder) / "friedman.npz"
        np.savez(file, x=x, y=y, test_x=test_x, test_y=test_y)
        print(f"{'seed':<6}{'ours':>8}{'scikit-learn':>14}{'linear':>9}")
        for seed in range(options.seeds):
            found = ours.main(seed, folder, quiet=True)
            answer = subprocess.run(
                [options.peer_python, str(PEER), str(seed), str(file)], capture_output=True, text=True, check=True
            )
            peer = json.loads(answer.stdout)
            print(f"{seed:<6}{found:>8.3f}{peer['rmse']:>14.3f}{peer['linear']:>9.3f}")


if __name__ == "__main__":
    run_script(main)
