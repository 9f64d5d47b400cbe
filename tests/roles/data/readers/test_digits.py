"""The digits that install with scikit-learn."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.digits import open_digits

needs_digits = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs the examples extra")


@needs_digits
def test_the_last_360_of_1797_are_the_test_set() -> None:
    source = open_digits((8, 8, 1))
    assert len(source.labels("train")) == 1437 and len(source.labels("test")) == 360
    assert source.classes == tuple("0123456789") and source.value_max == 16
    assert source.labels("train")[:10].tolist() == list(range(10))


@needs_digits
def test_the_values_are_scikit_learns_own() -> None:
    from sklearn.datasets import load_digits

    theirs = load_digits()
    source = open_digits()
    out = np.empty((360, 8, 8, 1), np.float32)
    source.load("test", np.arange(360), out)
    np.testing.assert_array_equal(out.reshape(360, 64), theirs.data[-360:])
    np.testing.assert_array_equal(source.labels("test"), theirs.target[-360:])


@needs_digits
def test_another_input_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"\[28, 28, 1\].*\[8, 8, 1\]"):
        open_digits((28, 28, 1))


def test_without_scikit_learn_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'adamctl\[examples\]'"):
        open_digits()


@needs_digits
def test_neither_the_server_nor_the_digits_import_what_is_slow() -> None:
    code = (
        "import sys, adamctl.roles.data.server;"
        "from adamctl.roles.data.readers.digits import open_digits; open_digits();"
        "sys.exit(', '.join({'sklearn', 'PIL', 'numexpr', 'numba', 'scipy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"imported: {done.stderr}"
