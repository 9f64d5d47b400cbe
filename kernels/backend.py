"""Chooses the implementation of every kernel: numba if it is installed, else numpy; the user may force one.

numpy is the reference and always available. numexpr serves element-wise work. numba fuses what the others do in
several passes; its functions are in `adamctl.kernels.compiled`, whose modules import numba and are imported only when
used. Compiled code is cached on disk, so it is compiled once per machine and version.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from adamctl.errors import ConfigurationError
from adamctl.importing import importing
from adamctl.kernels import kernel_cache
from adamctl.kernels.tiling import panels

Backend = Literal["numpy", "numexpr", "numba"]
VARIABLE = "ADAMCTL_KERNELS"
_COMPILED = "adamctl.kernels.compiled"
COMPILED_MODULES = (
    "elementwise",
    "losses",
    "logistic",
    "weighted_losses",
    "dropout",
    "images",
    "direct",
    "convolution",
    "local",
    "regions",
    "heads",
    "norms",
    "contrast",
    "rules",
    "factors",
    "accrual",
    "ranges",
    "conversions",
    "rounds",
    "tiles",
    "warp",
)


@cache
def installed() -> tuple[Backend, ...]:
    """Returns the implementations this installation offers, numpy first. Imports none of them."""
    optional: tuple[Backend, ...] = ("numexpr", "numba")
    return ("numpy", *(name for name in optional if importlib.util.find_spec(name) is not None))


def choose(forced: str | None = None) -> Backend:
    """Returns the implementation to use: `forced`, else the environment's `ADAMCTL_KERNELS`, else the fastest.

    Raises:
        ConfigurationError: the name is unknown or not installed.
    """
    source = "kernels" if forced else VARIABLE
    name = forced or os.environ.get(VARIABLE, "")
    offered = installed()
    if not name:
        return "numba" if "numba" in offered else "numpy"
    if name not in get_args(Backend):
        raise ConfigurationError(f"{source}: expected one of {', '.join(get_args(Backend))}; found {name!r}")
    if name not in offered:
        raise ConfigurationError(f"{source}: {name} is not installed; install it or use one of {', '.join(offered)}")
    return name


_IMPORTING = threading.RLock()
"""Two threads cannot import numba at the same time: each would find half-executed modules of the other."""


@cache
def compiled(module: str) -> ModuleType:
    """Returns a module of compiled kernels, loading numba and the cached code on first use; from any thread."""
    with _IMPORTING, importing(keep=False):
        kernel_cache.prepare()
        return importlib.import_module(f"{_COMPILED}.{module}")


def compiled_if(backend: Backend, module: str) -> Any:
    """Returns the module of compiled kernels if `backend` is numba, else None."""
    return compiled(module) if backend == "numba" else None


def panels_with_tiles(size: int, kind: str) -> NDArray[np.int64]:
    """Returns the panels that cover an axis of `size` float32, with the addresses of their tiles."""
    tiles = compiled("tiles")
    covered: NDArray[np.int64] = tiles.with_tiles(panels(size, tiles.WIDE), kind)
    return covered


def load(names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
    """Loads or compiles kernels by the names from `adamctl.kernels.needed`; calls `progress` with each name first.

    Raises:
        ValueError: there is no kernel with that name.
    """
    for name in names:
        if progress is not None:
            progress(name)
        module, _, function = name.partition(".")
        kind, _, size = function.partition(":")
        if module not in COMPILED_MODULES or not hasattr(compiled(module), f"{kind}_of" if size else kind):
            raise ValueError(f"kernels: expected the name of a kernel; found {name!r}")
        if size:
            panels_with_tiles(int(size), kind)
        else:
            getattr(compiled(module), kind).load()


def load_if_compiled(names: Iterable[str], progress: Callable[[str], None] | None = None) -> None:
    """As `load` if the implementation in use is compiled; otherwise does nothing."""
    if choose() == "numba":
        load(names, progress)


def warm_up(
    forced: str | None = None,
    progress: Callable[[str], None] | None = None,
    modules: Sequence[str] = COMPILED_MODULES,
) -> Backend:
    """Loads every compiled kernel, or compiles it on first use of a machine, so that no step has to wait for it.

    `progress` is called with each module's name before it is loaded. Returns the implementation in use.
    """
    backend = choose(forced)
    if backend == "numba":
        for module in modules:
            if progress is not None:
                progress(module)
            for value in vars(compiled(module)).values():
                if hasattr(value, "is_loaded"):
                    value.load()
    return backend
