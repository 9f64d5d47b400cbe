"""From an experiment file to an `Experiment`: flag > `ADAMCTL_*` > file > default, each value with its origin.

A wrong value raises one `ConfigurationError` that names the place (file and line, variable or flag), the key, what was
found, what is allowed and the nearest valid spelling. Nothing here reads the process's environment: it is passed in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import pathsep
from pathlib import Path
from typing import Any, Literal

import msgspec

from adamctl.config.check import Problem, data_problems, leaf_keys, structure_problems, suggestion
from adamctl.config.conflicts import cross_problems
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.config.lines import KeyPath, dotted, key_lines
from adamctl.config.urls import is_url, without_file_scheme
from adamctl.errors import ConfigurationError
from adamctl.model.custom.loss import is_custom_loss
from adamctl.model.custom.modules import add_folder
from adamctl.model.custom.plain import experiment_from_user
from adamctl.model.custom.registry import customs_of
from adamctl.model.shapes import infer

ENVIRONMENT_PREFIX = "ADAMCTL_"
FILE_BYTES_MAX = 1 << 20
_PROBLEMS_SHOWN_MAX = 10
_LAYER = re.compile(r"^model\.layers\[(\d+)\]")


@dataclass(frozen=True)
class Origin:
    """Where a value comes from; `place` is `exp.toml:12`, `ADAMCTL_OPTIMIZER__LR`, `--set` or empty for a default."""

    kind: Literal["flag", "environment", "file", "default"]
    place: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.place}" if self.place else self.kind


@dataclass(frozen=True)
class Setting:
    """One value that overrides the file: `key` is dotted, list positions are numbers (`model.layers.0.units`)."""

    key: str
    value: Any
    origin: Origin
    text: str | None = None
    """The value as typed, used where text is expected but the typed value parses as another type."""


@dataclass(frozen=True)
class LoadedExperiment:
    """A valid experiment, the file it was read from, and where each value comes from (dotted key -> origin)."""

    experiment: Experiment
    path: Path
    origins: Mapping[str, Origin]


def parse_setting(text: str) -> Setting:
    """Reads `optimizer.lr=0.01` of `--set`; the value is TOML, and a bare word is text.

    Raises:
        ConfigurationError: there is no `=` or no key.
    """
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigurationError(f"--set {text}: expected KEY=VALUE, for example --set optimizer.lr=0.01")
    return Setting(key.strip(), _toml_value(value.strip()), Origin("flag", f"--set {key.strip()}"), value.strip())


def settings_from_environment(environment: Mapping[str, str]) -> list[Setting]:
    """Returns the settings from variables like `ADAMCTL_OPTIMIZER__LR`; two underscores stand for a dot.

    Variables without two underscores belong to commands (ADAMCTL_CONTROLLER, ADAMCTL_DATA), except those for the two
    keys outside all tables.
    """
    settings: list[Setting] = []
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
        if "." in key or key in ("seed", "name"):
            text = environment[variable]
            settings.append(Setting(key, _toml_value(text), Origin("environment", variable), text))
    return settings


def load_experiment(
    path: str | Path,
    *,
    settings: Sequence[Setting] = (),
    environment: Mapping[str, str] | None = None,
    search: Sequence[str] = (),
) -> LoadedExperiment:
    """Reads and validates an experiment.

    Args:
        path: the TOML file.
        settings: values from flags; later ones win.
        environment: the process's variables; none are used if it is left out.
        search: folders of `--data`, which are searched first, then those of ADAMCTL_DATA, then the file's.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or a value is wrong; up to ten problems, one per line.
    """
    file = Path(path)
    values, lines = _read(file)
    environment = environment or {}
    origins = {_set_key(key): Origin("file", f"{file}:{line}") for key, line in lines.items()}
    places: dict[KeyPath, str] = {}
    for setting in (*settings_from_environment(environment), *settings):
        key = _apply(values, setting)
        places[key] = str(setting.origin.place)
        for known in [name for name in origins if name.startswith(_set_key(key) + ".")]:
            del origins[known]
        origins[_set_key(key)] = setting.origin

    def fail(problems: list[Problem]) -> None:
        _fail(problems, file, lines, places)

    fail(structure_problems(values))
    experiment = msgspec.convert(experiment_from_user(values), Experiment)
    if customs_of(experiment.model) or is_custom_loss(experiment.model.loss):
        add_folder(file.absolute().parent)
    fail(cross_problems(experiment, _given_of_optimizer(values, origins)))
    fail(_model_problems(experiment))
    folders, origin = _search(experiment.data, search, environment)
    if origin is not None:
        origins["data.search"] = origin
    source = _source(experiment.data, file)
    data = msgspec.structs.replace(experiment.data, search=folders, source=source)
    complete = {".".join(map(str, key)): origins.get(_set_key(key), Origin("default")) for key in leaf_keys()}
    complete |= {key: found for key, found in origins.items() if key.startswith(_TABLES)}
    return LoadedExperiment(msgspec.structs.replace(experiment, data=data), file, complete)


def load_data(values: dict[str, Any], settings: Sequence[Setting]) -> DataConfig:
    """Returns the configuration of data that no experiment names.

    Args:
        values: what is known of `[data]`.
        settings: values of `data.KEY` from flags, which override those; later ones win.

    Raises:
        ConfigurationError: a setting is of another table, or a value is wrong.
    """
    whole: dict[str, Any] = {"data": dict(values)}
    places: dict[KeyPath, str] = {}
    for setting in settings:
        if not setting.key.startswith("data."):
            allowed = "expected a key of data, such as data.class_from, since there is no experiment file"
            raise ConfigurationError(f"{setting.origin.place}: {allowed}")
        places[_apply(whole, setting)] = setting.origin.place
    _fail(data_problems(whole["data"]), Path(), {}, places)
    return msgspec.convert(whole["data"], DataConfig)


def _fail(problems: list[Problem], file: Path, lines: dict[KeyPath, int], places: dict[KeyPath, str]) -> None:
    if problems:
        shown = [f"{_place(file, lines, places, p.path)}: {dotted(p.path)}: {p.message}" for p in problems]
        more = [f"... and {len(shown) - _PROBLEMS_SHOWN_MAX} more"] if len(shown) > _PROBLEMS_SHOWN_MAX else []
        raise ConfigurationError("\n".join(shown[:_PROBLEMS_SHOWN_MAX] + more))


def _given_of_optimizer(values: Mapping[str, Any], origins: Mapping[str, Origin]) -> set[str]:
    """Returns the settings of the optimizer that were written down for its type, not those of a file for another."""
    given = {key: origins.get(f"optimizer.{key}", Origin("default")).kind for key in values.get("optimizer", {})}
    return {key for key, kind in given.items() if kind != "file" or given.get("type", "file") == "file"}


def _read(file: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    try:
        with file.open("rb") as stream:
            content = stream.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        beside = sorted(str(other) for other in file.parent.glob("*.toml")) if file.parent.is_dir() else []
        raise ConfigurationError(f"{file}: no such experiment file.{suggestion(str(file), beside)}") from None
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{file}: expected at most {FILE_BYTES_MAX} bytes; found a longer file")
    try:
        text = content.decode("utf-8-sig")  # editors of Windows begin a file with a byte order mark
        return tomllib.loads(text), key_lines(text.replace("\r\n", "\n"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{file}: expected text in UTF-8; byte {error.start} is not") from error
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        raise ConfigurationError(f"{file}{':' + line[1] if line else ''}: not valid TOML: {error}") from error
    except ValueError as error:
        raise ConfigurationError(f"{file}: expected numbers of at most 4300 digits; found a longer one") from error


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # not TOML, or a number of more digits than Python reads
        return text


def _set_key(key: KeyPath) -> str:
    return ".".join(map(str, key))


def _apply(values: dict[str, Any], setting: Setting) -> KeyPath:
    """Puts a setting into the values and returns its path; numbers in the key are list positions."""
    names = setting.key.split(".")
    path: list[str | int] = []
    container: Any = values
    for position, name in enumerate(names):
        part: str | int = name
        if isinstance(container, list):
            if not name.isdecimal() or int(name) >= len(container):
                allowed = f"expected a position from 0 to {len(container) - 1}"
                raise ConfigurationError(f"{setting.origin.place}: {setting.key}: {allowed}; found {name}")
            part = int(name)
        elif not isinstance(container, dict):
            holder = f"{dotted(tuple(path))} is a value, not a table"
            raise ConfigurationError(f"{setting.origin.place}: {setting.key}: {holder}")
        path.append(part)
        if position == len(names) - 1:
            container[part] = setting.value
            if setting.text is not None and not isinstance(setting.value, str) and tuple(path) in _TEXT_KEYS:
                container[part] = setting.text
        elif isinstance(part, int):
            container = container[part]
        else:
            container = container.setdefault(part, {})
    return tuple(path)


GIVEN_WHOLE = ("partition.", "optimizer.settings.", "data.sampling.", "train.class_weights.")
"""Tables whose keys are the user's: nothing in them is a default."""
_TABLES = ("model.", *GIVEN_WHOLE)
"""Tables whose keys are not those of a struct."""
_TEXT_KEYS: frozenset[KeyPath] = frozenset({("name",), ("data", "source")})


def _place(file: Path, lines: dict[KeyPath, int], places: dict[KeyPath, str], path: KeyPath) -> str:
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return places[path[:length]]
        if path[:length] in lines:
            return f"{file}:{lines[path[:length]]}"
    return str(file)


def _model_problems(experiment: Experiment) -> list[Problem]:
    try:
        infer(experiment.model)
    except ConfigurationError as error:
        message = str(error)
        layer = _LAYER.match(message)
        path: KeyPath = ("model", "layers", int(layer[1])) if layer else ("model",)
        head, colon, rest = message.partition(": ")
        if not layer and colon and head.startswith("model."):
            path = tuple(head.split("."))
        return [Problem(path, rest if colon else message)]
    return []


def data_folders(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the folders of ADAMCTL_DATA, in which data sets are looked up, first match first."""
    return tuple(filter(None, environment.get("ADAMCTL_DATA", "").split(pathsep)))


def _search(
    data: DataConfig, flags: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Origin | None]:
    variable = data_folders(environment)
    absolute = (str(Path(folder).expanduser().absolute()) for folder in (*flags, *variable, *data.search))
    folders = tuple(dict.fromkeys(absolute))
    origin = Origin("flag", "--data") if flags else Origin("environment", "ADAMCTL_DATA") if variable else None
    return folders, origin


def _source(data: DataConfig, file: Path) -> str:
    """Returns the source: a bare name unchanged, a path absolute, in the experiment's folder if it exists there."""
    if data.format == "digits" or is_url(data.source) or "/" not in data.source:
        return data.source
    written = Path(without_file_scheme(data.source)).expanduser()
    beside = file.absolute().parent / written
    return str(beside.resolve() if beside.exists() else written.absolute())
