"""Choosing the implementation: the fastest installed, the one forced, a clear refusal; numba only when used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from adamctl.errors import ConfigurationError
from adamctl.kernels import backend


def test_numba_is_the_default_where_it_is_installed(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    assert backend.choose() == ("numba" if "numba" in backend.installed() else "numpy")


def test_numpy_is_the_default_without_numba(monkeypatch):
    monkeypatch.delenv(backend.VARIABLE, raising=False)
    monkeypatch.setattr(backend, "installed", lambda: ("numpy", "numexpr"))
    assert backend.choose() == "numpy"


def test_the_environment_forces_and_an_argument_goes_before_it(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "numexpr")
    assert backend.choose() == "numexpr"
    assert backend.choose("numpy") == "numpy"


def test_an_unknown_or_missing_implementation_is_refused(monkeypatch):
    monkeypatch.setenv(backend.VARIABLE, "cuda")
    with pytest.raises(ConfigurationError, match="ADAMCTL_KERNELS: expected one of numpy, numexpr, numba"):
        backend.choose()
    monkeypatch.setattr(backend, "installed", lambda: ("numpy",))
    with pytest.raises(ConfigurationError, match="numba is not installed"):
        backend.choose("numba")


def test_warm_up_names_what_it_loads():
    if "numba" not in backend.installed():
        pytest.skip("needs numba")
    names: list[str] = []
    assert backend.warm_up("numba", names.append) == "numba"
    assert tuple(names) == backend.COMPILED_MODULES
    assert backend.warm_up("numpy", names.append) == "numpy"


def test_importing_kernels_imports_neither_numba_nor_numexpr():
    code = (
        "import sys, adamctl.kernels.step.network, adamctl.kernels.rules, adamctl.kernels.numeric.finite; "
        "print([name for name in ('numba', 'numexpr', 'scipy') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_the_program_works_without_numba_and_numexpr():
    code = (
        "import sys; sys.modules['numba'] = None; sys.modules['numexpr'] = None\n"
        "import numpy as np, importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name in ('numba', 'numexpr') else found(name, *rest)\n"
        "from adamctl.kernels.step.network import Network\n"
        "from adamctl.model.description import Conv2D, MaxPool2D, Model, Softmax\n"
        "network = Network(Model((6, 6, 1), (Conv2D(2, 3, activation='relu'), MaxPool2D(2), Softmax(3))), 4)\n"
        "flat = np.zeros(network.flat_size, np.float32)\n"
        "images, labels = np.ones((4, 6, 6, 1), np.float32), np.zeros(4, np.int32)\n"
        "print(network.backend, round(network.step(network.context(), flat, images, labels).loss, 4))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != backend.VARIABLE}
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert printed.split() == ["numpy", "1.0986"]


IMPORTS = """
import threading
from adamctl.kernels.backend import compiled

failed = []
barrier = threading.Barrier(4)

def load(module):
    barrier.wait()
    try:
        compiled(module)
    except Exception as error:
        failed.append(repr(error))

threads = [threading.Thread(target=load, args=[module]) for module in ("conversions", "rules", "factors", "tiles")]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failed)
"""


@pytest.mark.skipif("numba" not in backend.installed(), reason="numba is not installed")
def test_several_threads_load_compiled_kernels_at_once() -> None:
    """A client and a server of one process did: numba's modules were found half executed."""
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
