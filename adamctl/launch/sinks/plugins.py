"""Sinks are plug-ins: each is named by an entry point of the group `adamctl.sinks`.

Another package adds `adamctl run follow RUN --to mine` by declaring

    [project.entry-points."adamctl.sinks"]
    mine = "mypackage.sink:SINK"

where SINK is a `SinkKind`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from adamctl.errors import AdamctlError, ConfigurationError, RunFailedError
from adamctl.launch.sinks import BUILT_IN, SINKS
from adamctl.launch.sinks.measurement import Measurement


class Sink(Protocol):
    """Takes the measurements of one run, in their order. Any error that a method raises ends the following."""

    def add(self, measurement: Measurement) -> None:
        """Takes a measurement."""

    def went_back(self, step: int) -> None:
        """The run went back to a checkpoint: what was taken from this step on no longer counts."""

    def flush(self) -> None:
        """Makes what was taken visible to readers; called now and then."""

    def close(self) -> None:
        """Ends; called once, also after an error."""


@dataclass(frozen=True)
class SinkKind:
    """One kind of sink.

    Attributes:
        name: the value of `--to`, and the name of the entry point.
        open: `module:function` of (run, folder) that returns a `Sink`: the run's name, NAME/NNN, and the folder for
            what it writes, which may not exist yet. The module is imported when the sink is opened.
        extra: the extra of the package that installs what that module imports; empty: the package suffices.
        folder: the folder for what it writes, within the run folder, unless `--logdir` names another.
    """

    name: str
    open: str
    extra: str = ""
    folder: str = "."


def find(name: str) -> SinkKind:
    """Returns a kind of sink; built-in ones are found without searching the installed packages.

    Raises:
        ConfigurationError: there is none of this name, there are two, or it cannot be loaded.
    """
    if name in BUILT_IN:
        kind = import_module(f"adamctl.launch.sinks.{name}").SINK
        assert isinstance(kind, SinkKind)
        return kind
    return SINKS.load_named(name, SinkKind, "a sink")


def open_sink(kind: SinkKind, run: str, folder: Path) -> Sink:
    """Opens a sink.

    Raises:
        ConfigurationError: what it needs is not installed, or it cannot be opened.
    """
    module, _, function = kind.open.partition(":")
    what = f"--to {kind.name} ({kind.open})"
    try:
        opener: Callable[[str, Path], Any] = getattr(import_module(module), function)
    except ImportError as error:
        raise ConfigurationError(f"{what} cannot be loaded: {error}{_advice(kind)}") from error
    except Exception as error:
        raise ConfigurationError(f"{what} cannot be loaded: {error}") from error
    try:
        opened = opener(run, folder)
    except AdamctlError:
        raise
    except ImportError as error:
        raise ConfigurationError(f"{what} cannot be opened: {error}{_advice(kind)}") from error
    except Exception as error:
        raise ConfigurationError(f"{what} cannot be opened: {type(error).__name__}: {error}") from error
    return GuardedSink(kind, opened)


class GuardedSink:
    """A sink of which every method raises nothing but adamctl's errors, which name it."""

    def __init__(self, kind: SinkKind, sink: Sink) -> None:
        self._kind, self._sink = kind, sink

    def add(self, measurement: Measurement) -> None:
        self._call(self._sink.add, measurement)

    def went_back(self, step: int) -> None:
        self._call(self._sink.went_back, step)

    def flush(self) -> None:
        self._call(self._sink.flush)

    def close(self) -> None:
        self._call(self._sink.close)

    def _call(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except (AdamctlError, BrokenPipeError):
            raise
        except Exception as error:
            where = f"--to {self._kind.name} ({self._kind.open})"
            raise RunFailedError(
                f"{where} failed with {type(error).__name__}: {error}; the run continues without it"
            ) from error


def _advice(kind: SinkKind) -> str:
    if not kind.extra:
        return ""
    distribution = None if kind.name in BUILT_IN else SINKS.point(kind.name).dist
    package = "adamctl" if kind.name in BUILT_IN else "PACKAGE" if distribution is None else distribution.name
    return f"; pip install '{package}[{kind.extra}]'"
