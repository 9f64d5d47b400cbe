"""How kernels are compiled: on first use, cached on disk, running without the interpreter lock.

A kernel is declared with the types of its arguments and compiled later: a process uses only a few kernels, and
compiling all would take half a minute of a machine's first run. Compiled code is kept in the folder that `kernel_cache`
names by a hash of all sources, so it outlives an installation; one process compiles a kernel while others wait for it.
Each kind of processor has files of its own: on a network folder without locks machines would mix up those of one name.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding
import numba
import numba.core.caching
import numba.core.ccallback
import numba.core.codegen
import numba.core.config
import numba.core.registry
import numba.core.runtime.nrt
import numba.core.sigutils
from numba import types

from adamctl.kernels import kernel_cache

_njit: Any = numba.njit  # its type stubs lack some options
_caching: Any = numba.core.caching
_codegen: Any = numba.core.codegen
_config: Any = numba.core.config
_Dispatcher: Any = numba.core.registry.CPUDispatcher
_CFunc: Any = numba.core.ccallback.CFunc
_normalized: Any = numba.core.sigutils.normalize_signature
_runtime: Any = numba.core.runtime.nrt.rtsys

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be reordered and products fused; NaN and infinity keep their meaning.
RELAXED = {"contract", "reassoc", "nsz", "arcp"}

_COMPILING = threading.RLock()
"""One thread of a process compiles or loads at a time."""


def _processor() -> str:
    """Returns a hash of the name and the features of the processor that numba compiles for."""
    name = _config.CPU_NAME or llvmlite.binding.get_host_cpu_name()
    features = _config.CPU_FEATURES or _codegen.get_host_cpu_features()
    return hashlib.blake2b(f"{name} {features}".encode(), digest_size=4).hexdigest()


_PROCESSOR = _processor()


class _Locator(_caching._CacheLocator):  # type: ignore[misc]
    """Names the files of a kernel's code by the folder's hash and the processor, not by the path of its source."""

    def __init__(self, function: Any, folder: Path) -> None:
        self._function, self._folder = function, folder

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return self._folder.name

    def get_disambiguator(self) -> str:
        return f"{self._function.__code__.co_firstlineno}-{_PROCESSOR}"

    @classmethod
    def from_function(cls, function: Any, source: str) -> _Locator | None:
        folder = Path(os.environ[kernel_cache.VARIABLE])
        return cls(function, folder) if folder.name.startswith(kernel_cache.PREFIX) else None


class _CustomLocator(_Locator):
    """As `_Locator`, for a user's function: its files are named by its `source_stamp`, too."""

    def get_source_stamp(self) -> str:
        return str(self._function.source_stamp)

    def get_disambiguator(self) -> str:
        return f"{self.get_source_stamp()}-{super().get_disambiguator()}"

    @classmethod
    def from_function(cls, function: Any, source: str) -> _Locator | None:
        return super().from_function(function, source) if function.source_stamp else None


class _Files(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_Locator, *_caching.CompileResultCacheImpl._locator_classes)


class _CustomFiles(_caching.CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_CustomLocator, *_caching.CompileResultCacheImpl._locator_classes)


class _Cache(_caching.FunctionCache):  # type: ignore[misc]
    _impl_class = _Files

    @property
    def lock(self) -> Path:
        """The file that a process locks while it compiles this kernel or reads its code."""
        return Path(self.cache_path) / f"{self._impl.filename_base}.lock"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Returns code from the cache, None if it is not there.

        numba would first learn all that it can compile, which takes half a second of every process. What is not there
        is compiled, and it learns that then.
        """
        _runtime.initialize(context)
        return self._read(self._load_overload, signature, context)

    def save_overload(self, signature: Any, code: Any) -> None:
        """Keeps code, if there is room: what is compiled can be used all the same."""
        with suppress(OSError):
            super().save_overload(signature, code)

    def _read(self, load: Callable[[Any, Any], Any], signature: Any, context: Any) -> Any:
        """Returns what `load` does; None, and removes the kernel's files, if it fails in any way: one is damaged."""
        try:
            return load(signature, context)
        except Exception:
            self._remove()
            return None

    def _remove(self) -> None:
        folder, name = Path(self.cache_path), self._impl.filename_base
        try:
            for path in (folder / f"{name}.nbi", *folder.glob(f"{name}.*.nbc")):
                path.unlink(missing_ok=True)
        except OSError:
            self.disable()  # else it would be read again before new code is written


class _CustomCache(_Cache):
    _impl_class = _CustomFiles

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Likewise, after all that: what a user's function calls may be found only by what it brings."""
        return self._read(super(_Cache, self).load_overload, signature, context)


class Kernel(_Dispatcher):  # type: ignore[misc]
    """A function for given argument types, compiled for them on first use."""

    declared: tuple[Any, ...] = ()

    @property
    def is_loaded(self) -> bool:
        return not self.declared

    def load(self) -> None:
        """Compiles the kernel, or loads its code from the cache; does nothing the second time."""
        if not self.declared:
            return
        with _COMPILING:
            if not self.declared:
                return
            with kernel_cache.locked(self._cache.lock):
                for signature in self.declared:
                    self.compile(signature)
            self.disable_compile()
            self.declared = ()

    def _compile_for_args(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns the compiled code for a first call's arguments; later calls find it directly."""
        if self.is_loaded:  # the declared types do not fit
            return super()._compile_for_args(*arguments, **keywords)
        self.load()
        found = tuple(self.typeof_pyval(argument) for argument in arguments)
        declared = self.typingctx.resolve_overload(self.py_func, self.nopython_signatures, found, {})
        if declared is None:
            names = ", ".join(map(str, found))
            raise TypeError(f"{self.__name__}: expected {self.nopython_signatures}; found {names}")
        return self.overloads[tuple(declared.args)].entry_point

    def get_call_template(self, arguments: Any, keywords: Any) -> Any:
        self.load()
        return super().get_call_template(arguments, keywords)


def kernel(*signatures: Any, relaxed: bool = True) -> Callable[[Function], Function]:
    """Declares a function that is compiled for each of these argument types on first use.

    If not `relaxed`, arithmetic is done exactly as written, to the bit.
    """

    return cast(
        Callable[[Function], Function], lambda function: _declared(function, signatures, relaxed, _Cache(function))
    )


def custom_kernel(function: Any, signatures: tuple[str, ...], relaxed: bool, stamp: str) -> Kernel:
    """As `kernel`, for a function of the user's own and numba's text of the types of its arguments.

    `stamp`: the hash of all sources that its code depends on; empty if it is in no file.
    """
    function.source_stamp = stamp
    return _declared(function, signatures, relaxed, _CustomCache(function))


def _declared(function: Any, signatures: tuple[Any, ...], relaxed: bool, cache: _Cache) -> Kernel:
    options = {
        "nopython": True, "boundscheck": None, "nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True,
        "fastmath": RELAXED if relaxed else False,
    }  # fmt: skip
    declared = Kernel(py_func=function, targetoptions=options)
    declared._cache = cache
    declared.declared = signatures
    return declared


def inline(function: Function, relaxed: bool = True) -> Function:
    """Makes a function callable only from kernels; it is compiled with each of its callers. `relaxed`: as `kernel`."""
    fast = RELAXED if relaxed else False
    jit = _njit(nogil=True, fastmath=fast, error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
    return cast(Function, jit(function))


def inline_source(function: Function) -> Function:
    """Makes a function's source a part of the kernels that call it: no call is left, and no reference is counted.

    For what several kernels are made of: `inline` costs some tens of nanoseconds for each of its arrays.
    """
    return cast(Function, _njit(inline="always")(function))


def callback(function: Any, name: str, arguments: int) -> Any:
    """Compiles, or loads from the cache, a function of `arguments` int64 values that is called by its `.address`.

    `name` identifies it in the cache: two functions with one name would be two entries of one file, which processes
    writing it at the same time could mix up.
    """
    function.__qualname__ = function.__name__ = name
    made = _CFunc(function, _normalized(types.void(*[i64] * arguments)), locals={}, options={"error_model": "numpy"})
    made._cache = _Cache(function)
    with _COMPILING, kernel_cache.locked(made._cache.lock):
        made.compile()
    return made


def writable(dtype: Any, dimensions: int) -> Any:
    """The type of a C-contiguous array that a kernel writes."""
    return types.Array(dtype, dimensions, "C")


def readable(dtype: Any, dimensions: int) -> Any:
    """The type of a C-contiguous array that a kernel only reads; read-only arrays fit, too."""
    return types.Array(dtype, dimensions, "C", readonly=True)


f32, f64, i32, i64 = types.float32, types.float64, types.int32, types.int64
u8, u64 = types.uint8, types.uint64
IN1, IN2, IN4 = readable(f32, 1), readable(f32, 2), readable(f32, 4)
OUT1, OUT2, OUT4 = writable(f32, 1), writable(f32, 2), writable(f32, 4)
