"""The engines by name, as `adamctl train --on NAME` finds them: none is imported before it is asked for.

An engine is a class that is called with `EngineOptions` and keeps the promises of `Places`. One that cannot be used
from here says so: in `check_here`, before anything is made for a run, because what it needs is not installed; in
`begin`, because that is not running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Protocol

from adamctl.config.check import suggestion
from adamctl.errors import ConfigurationError
from adamctl.importing import importing
from adamctl.launch.places.places import Places

BY_HAND = "agents"
SLURM = "slurm"
ENGINES = {
    BY_HAND: "adamctl.launch.places.by_hand:ByHand",
    "local": "adamctl.launch.places.local:LocalPlaces",
    "ray": "adamctl.launch.places.ray:RayPlaces",
    SLURM: "adamctl.launch.places.slurm:SlurmPlaces",
}
"""Name -> `module:Class`. Each class takes one `EngineOptions`."""


@dataclass(frozen=True)
class EngineOptions:
    """What every engine is told when it is made.

    Attributes:
        run: NAME/NNN, for the names of jobs.
        folder: an existing folder of the run for what the engine writes, such as the output of agents.
        environment: of this process, without the run's token.
        note: says something to the user.
        flags: values of the engine's own flags, by name without dashes in front, such as `slurm-partition`; only those
            that were given.
    """

    run: str
    folder: Path
    environment: Mapping[str, str] = field(repr=False)
    note: Callable[[str], None] = lambda text: None
    flags: Mapping[str, str] = field(default_factory=dict)


class Engine(Protocol):
    """What `ENGINES` names: a class, of which each run gets one."""

    def __call__(self, options: EngineOptions) -> Places: ...

    def check_here(self, environment: Mapping[str, str]) -> None:
        """Returns if what the engine needs is installed on this machine. `environment`: of this process.

        Raises:
            UnreachableError: it is not.
            ConfigurationError: it is not, or a variable for it cannot be used.
        """
        ...


def open_engine(name: str, options: EngineOptions) -> Places:
    """Returns the engine of this name; nothing is asked of it yet.

    Raises:
        ConfigurationError: there is no such engine, a flag belongs to another one, or it cannot be loaded here.
    """
    check_flags(name, options.flags)
    return _engine(name)(options)


def check_engine(name: str, environment: Mapping[str, str]) -> None:
    """Raises what `Engine.check_here` does, or ConfigurationError: the engine of this name cannot be loaded here."""
    _engine(name).check_here(environment)


def _engine(name: str) -> Engine:
    """Returns the class of an engine that there is."""
    module, _, attribute = ENGINES[name].partition(":")
    try:
        with importing():
            engine: Engine = getattr(import_module(module), attribute)
    except ImportError as error:
        raise ConfigurationError(f"--on {name}: it cannot be loaded here: {error}") from error
    return engine


def check_flags(name: str, flags: Mapping[str, str]) -> None:
    """Raises ConfigurationError: there is no engine of this name, or a flag is not its own."""
    if name not in ENGINES:
        raise ConfigurationError(f"--on: expected {', '.join(ENGINES)}; found {name!r}.{suggestion(name, ENGINES)}")
    for flag in flags:
        if not flag.startswith(f"{name}-"):
            raise ConfigurationError(f"--{flag} is for --on {flag.partition('-')[0]}; found --on {name}")
