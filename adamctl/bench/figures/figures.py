"""`adamctl bench figures`: measures what is not there yet of each figure, draws it, and makes the report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

import adamctl
from adamctl.bench import namespaces
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.machines import check_core_shares, load_1_minute, said_of_load
from adamctl.bench.figures.parts import PARTS, Module, Part
from adamctl.bench.figures.picture import check, draw
from adamctl.bench.figures.rounds import NAME, MissingRoundError, Rounds
from adamctl.bench.figures.session import FigureSettings, Progress, Session
from adamctl.bench.report import describe_machine, describe_versions, make_report
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.roles.folder_lock import FolderLock
from adamctl.wire.unreadable import UNREADABLE

PACKAGES = ("adamctl", "numpy", "numba")
REPORT, PICTURE = "report.json", "figure.svg"


class NotInsideError(ConfigurationError):
    """Machines with links of their own are measured only inside a namespace (`namespaces.go_inside`)."""


@dataclass(frozen=True)
class Asked:
    """What was asked for.

    Attributes:
        names: of figures.
        folder: where rounds are kept: a folder for each figure.
        found: the reports whose rounds are used.
        output: another file for the picture, of a single figure.
    """

    names: tuple[str, ...]
    folder: Path
    settings: FigureSettings
    found: tuple[Path, ...] = ()
    output: Path | None = None


def run_figures(asked: Asked, progress: Progress = lambda text: None) -> dict[str, Any]:
    """Makes figures, one after the other, and returns the report; pictures and reports are in the folder.

    Raises:
        ConfigurationError: a figure is not known, or cannot be measured here, which is known before any is begun.
            Data that are missing are told by the first run that needs them.
        NotInsideError: a figure has to be measured inside a namespace; those before it have been made.
        RunFailedError: a run fails; what was finished before is kept, and the same call goes on.
    """
    names = _names_of(asked)
    if namespaces.is_inside():
        namespaces.bring_up_loopback()
    for path in asked.found:
        _take_over(path, asked)
    results = [_run(name, PARTS[name], asked, progress) for name in names]
    return make_report("figures", PACKAGES, results)


def _names_of(asked: Asked) -> tuple[str, ...]:
    """Returns which figures are made: those that were named, or those in the reports.

    Raises:
        ConfigurationError: one is not known, or cannot be measured here.
    """
    found = (one["name"] for path in asked.found for one in _results(path))
    names = tuple(dict.fromkeys(asked.names or found))
    _check_known(names)
    if asked.output is not None and len(names) > 1:
        raise ConfigurationError(f"--output: expected one figure; found {', '.join(names)}; see {PICTURE} in --folder")
    fixed = [name for name in names if not PARTS[name].has_rates]
    if asked.settings.searches and fixed:
        able = ", ".join(name for name, part in PARTS.items() if part.has_rates)
        raise ConfigurationError(f"--search: expected figures with rates to choose, {able}; found {', '.join(fixed)}")
    check()
    left = [PARTS[name] for name in _left(names, asked)]
    if any(part.has_machines for part in left):
        check_core_shares()
    if any(part.has_links or part.runs_links for part in left) and (problem := namespaces.missing()):
        raise ConfigurationError(problem)
    return names


def _left(names: Sequence[str], asked: Asked) -> list[str]:
    """Returns which figures may have rounds left to take: a search may choose rates that were not measured with."""
    done = {one["name"] for path in asked.found for one in _results(path) if one["done"]}
    return [
        name for name in names if asked.settings.searches or (name not in done and not rounds_of(name, asked).is_done)
    ]


def rounds_of(name: str, asked: Asked) -> Rounds:
    """Returns what is kept of a figure."""
    return Rounds(_place(name, asked) / NAME)


def _place(name: str, asked: Asked) -> Path:
    return asked.folder / (f"{name}-quick" if asked.settings.is_quick else name)


def _take_over(path: Path, asked: Asked) -> None:
    results = _results(path)
    _check_known([one["name"] for one in results], f"--from {path}: ")
    if any(one["quick"] != asked.settings.is_quick for one in results):
        wanted = "with" if asked.settings.is_quick else "without"
        raise ConfigurationError(f"--from {path}: expected rounds {wanted} --quick; found others")
    for one in results:
        rounds_of(one["name"], asked).take_over(one)


class _Machine(msgspec.Struct):
    cores: int
    processor: str


class _Start(msgspec.Struct):
    date: str
    load_1_minute: float
    commit: str
    machine: _Machine


class _Result(msgspec.Struct):
    name: str
    quick: bool
    done: bool
    rounds: dict[str, Any]
    starts: list[_Start]


class _Report(msgspec.Struct):
    """What is read of a report of `bench figures --json`."""

    bench: Literal["figures"]
    results: list[_Result]


def _results(path: Path) -> list[dict[str, Any]]:
    """Returns the figures of a report. Raises ConfigurationError: it is none, or cannot be read."""
    try:
        report = json.loads(path.read_bytes())
        msgspec.convert(report, _Report)
    except (OSError, *UNREADABLE) as error:
        raise ConfigurationError(f"--from {path}: expected what `bench figures --json` prints; found {error}") from None
    results: list[dict[str, Any]] = report["results"]
    return results


def _check_known(names: Sequence[str], what: str = "") -> None:
    unknown = [name for name in names if name not in PARTS]
    if unknown or not names:
        raise ConfigurationError(f"{what}expected some of {', '.join(PARTS)}; found {', '.join(unknown) or 'none'}")


def _run(name: str, part: Part, asked: Asked, progress: Progress) -> dict[str, Any]:
    lock = FolderLock(_place(name, asked), "--folder", "process with this figure")
    try:
        return _made(name, part, asked, progress)
    finally:
        lock.release()


def _made(name: str, part: Part, asked: Asked, progress: Progress) -> dict[str, Any]:
    """Draws a figure, of which what is missing is measured; returns what the report has of it."""
    rounds, module = rounds_of(name, asked), part.load()
    figure = None
    if rounds.is_done and not asked.settings.searches:
        try:
            figure = module.figure_of(rounds)
        except MissingRoundError as error:  # it was measured by an earlier version
            progress(f"{name}: {error}")
    if figure is None:
        figure = _measured(name, part, module, rounds, asked, progress)
    figure = replace(figure, sentences=(*figure.sentences, *said_of_starts(rounds.starts)))
    return _shown(name, part, figure, rounds, _place(name, asked), asked, progress)


def _measured(name: str, part: Part, module: Module, rounds: Rounds, asked: Asked, progress: Progress) -> Figure:
    """Measures what is not there yet, and returns the figure."""
    if part.has_links and not namespaces.is_inside():
        raise NotInsideError(f"{name}: expected a network namespace to measure it in; found none")
    check_same_machine(name, rounds.starts)

    @cache
    def begin() -> None:
        minutes = "a try of tiny size" if asked.settings.is_quick else f"about {part.minutes:g} minutes"
        load = load_1_minute()
        progress(f"{name}: {part.title}; {minutes}; {said_of_load(load)}")
        rounds.start(start_of(load))

    session = Session(
        asked.settings, rounds, lambda other: rounds_of(other, asked), lambda text: progress(f"{name}: {text}"), begin
    )
    module.measure(session)
    if not rounds.is_done:
        rounds.finish()
    return module.figure_of(rounds)


def _shown(
    name: str, part: Part, figure: Figure, rounds: Rounds, place: Path, asked: Asked, progress: Progress
) -> dict[str, Any]:
    """Writes the picture and the report, and returns what the report has of the figure."""
    result: dict[str, Any] = {
        "name": name, "title": part.title, "quick": asked.settings.is_quick, **rounds.to_json(),
        **msgspec.to_builtins(figure),
    }  # fmt: skip
    picture = place / PICTURE
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / REPORT).write_text(json.dumps(make_report("figures", PACKAGES, [result]), indent=1) + "\n")
    except OSError as error:
        raise RunFailedError(
            f"{place / REPORT} cannot be written ({error.strerror}); rounds are kept, and the same call goes on"
        ) from None
    for path in (picture, *([] if asked.output is None else [asked.output])):
        draw(figure, part.title, path, is_quick=asked.settings.is_quick)
    progress(f"{name}: picture: {asked.output or picture}")
    return result


def check_same_machine(name: str, starts: Sequence[Mapping[str, Any]]) -> None:
    """Checks that a figure goes on where it was begun: rounds of several machines cannot be compared.

    Raises:
        ConfigurationError: this machine has other cores, or another number of them.
    """
    here = _cores(describe_machine())
    if starts and (before := _cores(starts[-1]["machine"])) != here:
        raise ConfigurationError(
            f"{name}: expected the machine that it was begun on, {before}; found {here}: give another --folder, and no "
            "--from with it, to measure it anew"
        )


def _cores(machine: Mapping[str, Any]) -> str:
    return f"{machine['cores']} cores of {machine['processor']}"


def start_of(load: float) -> dict[str, Any]:
    """Returns what is noted when measuring begins."""
    return {
        "date": datetime.now().astimezone().date().isoformat(),
        "load_1_minute": load,
        "commit": commit(),
        "machine": describe_machine(),
        "versions": describe_versions(PACKAGES),
    }


def said_of_starts(starts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Returns where and when it was measured, in words."""
    if not starts:
        return ()
    machines = dict.fromkeys(_cores(one["machine"]) for one in starts)
    dates, commits = (dict.fromkeys(str(one[key]) for one in starts) for key in ("date", "commit"))
    load = max(float(one["load_1_minute"]) for one in starts)
    text = f"{', '.join(machines)}; {', '.join(dates)}; commit {', '.join(commits)}"
    interrupted = f"; by {len(starts)} runs of the command" if len(starts) > 1 else ""
    return (f"Measured on {text}{interrupted}. {said_of_load(load).capitalize()}.",)


def commit() -> str:
    """Returns the commit of this checkout, or the version where there is none."""
    folder = Path(adamctl.__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*"],
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return f"version {adamctl.__version__}"
    return done.stdout.strip() if done.returncode == 0 else f"version {adamctl.__version__}"
