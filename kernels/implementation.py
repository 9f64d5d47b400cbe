"""What decides the last bits of a gradient: where all of this is equal, equal batches give equal bits.

A BLAS multiplies matrices by other routines, and adds up in another order, on other processors. Kernels are compiled
for the processor that they run on. numpy and the C library choose their functions by its features.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from adamctl import __version__
from adamctl.kernels.backend import Backend, choose

PROCESSOR = "processor"
"""The entry whose words are features: what differs is said word by word."""


def implementation() -> Mapping[str, str]:
    """Returns it, in the order in which differences are told. Loads the compiler if kernels are compiled."""
    return with_kernels(choose())


@cache
def with_kernels(kernels: Backend) -> Mapping[str, str]:
    """Returns what it is with these kernels; kept for each of them, since a process may be told to use others."""
    compiled = _compiler() if kernels == "numba" else {}
    packages = {"numpy": np.__version__}
    if kernels != "numpy":
        packages[kernels] = importlib.metadata.version(kernels)
    return {
        "adamctl": __version__,
        "kernels": kernels,
        **packages,
        **compiled,
        "BLAS": _blas(),
        "C library": " ".join(platform.libc_ver()),
        "machine": platform.machine(),
        PROCESSOR: " ".join(_features()),
    }


def _compiler() -> dict[str, str]:
    """Returns what compiled kernels are made by and for."""
    import llvmlite.binding as llvm

    names = {"NUMBA_CPU_NAME": llvm.get_host_cpu_name(), "NUMBA_CPU_FEATURES": ""}
    model, features = (os.environ.get(name) or own for name, own in names.items())
    found = {"LLVM": ".".join(map(str, llvm.llvm_version_info)), "compiled for": model}
    return found | ({"NUMBA_CPU_FEATURES": features} if features else {})


def _blas() -> str:
    """Returns numpy's own BLAS, its version and the kind of processor that its routines are for."""
    from threadpoolctl import threadpool_info

    np.ones((2, 2), np.float32) @ np.ones((2, 2), np.float32)  # loads it
    own = Path(np.__file__).parent.parent / "numpy.libs"  # another package may have its own BLAS
    known = [one for one in threadpool_info() if one["user_api"] == "blas"]
    found = [one for one in known if Path(one["filepath"]).parent == own] or known
    return ", ".join(sorted({_described(one) for one in found}))


def _described(library: Mapping[str, Any]) -> str:
    known = (library.get("internal_api"), library.get("version"), library.get("architecture"))
    return " ".join(str(one) for one in known if one)


def _features() -> list[str]:
    """Returns what numpy says that it uses of the processor."""
    core = "numpy._core" if importlib.util.find_spec("numpy._core") else "numpy.core"
    features: dict[str, bool] = importlib.import_module(f"{core}._multiarray_umath").__cpu_features__
    return [name for name, used in features.items() if used]
