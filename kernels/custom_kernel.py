"""Kernels of the user's own: functions that numba compiles and that join the compiled step (decision 0047).

    @adam.kernel("void(float32[::1], float32[::1])")
    def relu(inputs, out):
        for place in range(inputs.size):
            out[place] = max(inputs[place], 0)

A kernel is compiled on first use, without the interpreter lock, and kept on disk by a hash of the source of its module
and of the user's own modules that this one imports: their constants and functions are a part of the compiled code.
Without numba it is the function as it stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from adamctl.errors import ConfigurationError, CustomError
from adamctl.kernels.backend import compiled, installed
from adamctl.kernels.native import Call, NativeCall, NativeProduct
from adamctl.model.custom.sources import stamp_of

_MAKING = threading.Lock()
"""Threads that compile their steps at the same time must find one and the same compiled function."""


class CustomKernel:
    """A function for given types of arguments. Calling it calls the compiled one, where there is numba."""

    __name__: str

    def __init__(self, function: Callable[..., Any], signatures: tuple[str, ...], relaxed: bool) -> None:
        self.function, self.signatures, self.relaxed = function, signatures, relaxed
        self._stamp = stamp_of(function)  # now: files may change before the kernel is used
        self._made: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return self._compiled(*arguments) if "numba" in installed() else self.function(*arguments)

    @property
    def _compiled(self) -> Any:
        if self._made is None:
            with _MAKING:
                if self._made is None:
                    self._made = compiled("jit").custom_kernel(
                        self.function, self.signatures, self.relaxed, self._stamp
                    )
        return self._made

    @property
    def overloads(self) -> Any:
        """The compiled code of each signature, once it is loaded."""
        return self._compiled.overloads

    def load(self) -> None:
        """Compiles the function, or loads its code; does nothing the second time.

        Raises:
            ConfigurationError: it cannot be compiled for these types; the message is numba's.
        """
        try:
            self._compiled.load()
        except Exception as error:
            text = " ".join(str(error).split())[:600]
            raise ConfigurationError(f"kernel {self.function.__module__}.{self.__name__}: {text}") from error


def kernel(*signatures: str, relaxed: bool = True) -> Callable[[Callable[..., Any]], CustomKernel]:
    """Declares a function that numba compiles for each of these signatures, such as `void(float32[::1], int64)`.

    Arrays are C-contiguous: `float32[:, ::1]`. If not `relaxed`, sums are added up in the order that is written.

    Raises:
        ConfigurationError: there is no signature.
    """
    if not signatures or not all(isinstance(signature, str) for signature in signatures):
        raise ConfigurationError('kernel: expected a signature, such as @adam.kernel("void(float32[::1], int64)")')
    return lambda function: CustomKernel(function, signatures, relaxed)


def checked_calls(where: str, calls: Any) -> list[Call] | None:
    """Returns what a native method of the user's own has returned. Raises CustomError: it is no list of calls."""
    if calls is None:
        return None
    if not isinstance(calls, Sequence) or not all(isinstance(call, (NativeCall, NativeProduct)) for call in calls):
        raise CustomError(f"{where}: expected a list of adam.call(...), or None; found {calls!r:.80}")
    return list(calls)


def make_from_python(calls: list[Call] | None) -> bool:
    """Makes native calls from Python, if there are any and each is of a kernel; returns whether it has."""
    if calls is None or not all(isinstance(call, NativeCall) for call in calls):
        return False
    for call in calls:
        call.make()  # type: ignore[union-attr]
    return True


def call(kernel: CustomKernel, *arguments: Any) -> NativeCall:
    """Returns the call of a kernel, for `native_upward`, `native_downward` and a loss's `native_error`.

    Args:
        arguments: arrays as the methods get them, or reshaped without a copy; int, float, bool or numpy.float32.

    Raises:
        ConfigurationError: it is no kernel, or an array is not C-contiguous.
    """
    if not isinstance(kernel, CustomKernel):
        raise ConfigurationError(f"call: expected a function declared by @adam.kernel; found {kernel!r:.80}")
    for place, argument in enumerate(arguments):
        flags = getattr(argument, "flags", None)
        if flags is not None and not flags.c_contiguous:
            raise ConfigurationError(
                f"call of {kernel.__name__}: expected C-contiguous arrays; found argument {place} of shape "
                f"{list(argument.shape)} with gaps"
            )
    return NativeCall(kernel, arguments)
