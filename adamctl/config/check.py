"""Compares plain values (from a TOML file, the environment or flags) with the structs that they will become.

Pure, but for the names of installed algorithms: values in, problems out. Each problem says what was found, what is
allowed and the nearest valid spelling; `adamctl.config.load` adds where the value came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any, Final

from msgspec import inspect

from adamctl.config import algorithms, formats
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment
from adamctl.config.lines import KeyPath, dotted
from adamctl.config.records import REPLICATION_MAX
from adamctl.model.commands import OPERANDS_MAX
from adamctl.model.custom.registry import BUILT_IN as BUILT_IN_LAYERS
from adamctl.model.custom.registry import is_custom
from adamctl.model.description import Custom
from adamctl.model.partition.cuts import PARTITIONS_MAX


@dataclass(frozen=True)
class Problem:
    """One thing wrong with the value at `path`; `message` is a sentence without a place."""

    path: KeyPath
    message: str

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.message}"


@dataclass(frozen=True)
class Limit:
    """The range of a number: `allowed` in words, `holds` as a check."""

    allowed: str
    holds: Callable[[float], bool]


FLIGHTS_MAX = 64
_DECIMAL_BITS_MAX = 10_000  # Python refuses to write more than 4,300 digits
_CUSTOM = str(Custom.__struct_config__.tag)
_AT_LEAST_1 = Limit("at least 1", lambda value: value >= 1)
_AT_LEAST_0 = Limit("at least 0", lambda value: value >= 0)
_ABOVE_0 = Limit("above 0", lambda value: value > 0)
_SHARE = Limit("above 0 and at most 1", lambda value: 0 < value <= 1)
_BELOW_1 = Limit("at least 0 and below 1", lambda value: 0 <= value < 1)

LIMITS: dict[str, Limit] = {
    "seed": Limit("at least 0 and below 2^63", lambda value: 0 <= value < 2**63),
    "data.validation": _BELOW_1,
    "data.memory_share": _SHARE,
    "data.translate": _AT_LEAST_0,
    "data.window_blocks": _AT_LEAST_1,
    "data.features.bands": Limit("from 1 to 1024", lambda value: 1 <= value <= 1024),
    "data.features.window_ms": Limit("above 0 and at most 1000", lambda value: 0 < value <= 1000),
    "data.features.hop_ms": Limit("above 0 and at most 1000", lambda value: 0 < value <= 1000),
    "data.features.context": Limit("from 0 to 100", lambda value: 0 <= value <= 100),
    "data.features.low_hz": _AT_LEAST_0,
    "data.features.high_hz": _ABOVE_0,
    "data.augment.rotate": Limit("from 0 to 180", lambda value: 0 <= value <= 180),
    "data.augment.scale": _BELOW_1,
    "data.augment.shear": _AT_LEAST_0,
    "data.augment.translate": _AT_LEAST_0,
    "data.augment.elastic.sigma": Limit("at least 0.5", lambda value: value >= 0.5),
    "data.augment.elastic.alpha": _AT_LEAST_0,
    "data.augment.brightness": Limit("from 0 to 1", lambda value: 0 <= value <= 1),
    "data.augment.contrast": _BELOW_1,
    "data.augment.crop": _AT_LEAST_0,
    "data.augment.reuse": _AT_LEAST_1,
    "data.augment.sound.gain": _AT_LEAST_0,
    "data.augment.sound.noise": _AT_LEAST_0,
    "data.augment.sound.shift": _AT_LEAST_0,
    "data.augment.sound.mask_frames": _AT_LEAST_0,
    "data.augment.sound.mask_bands": _AT_LEAST_0,
    "optimizer.lr": _ABOVE_0,
    "optimizer.momentum": _BELOW_1,
    "optimizer.decay": _BELOW_1,
    "optimizer.beta1": _BELOW_1,
    "optimizer.beta2": _BELOW_1,
    "optimizer.epsilon": _ABOVE_0,
    "optimizer.weight_decay": _AT_LEAST_0,
    "optimizer.clip_norm": _ABOVE_0,
    "optimizer.batch": _AT_LEAST_1,
    "optimizer.history": Limit(
        f"from 1 to {algorithms.HISTORY_MAX}, since a direction is one command on at most {OPERANDS_MAX} vectors",
        lambda value: 1 <= value <= algorithms.HISTORY_MAX,
    ),
    "optimizer.gradient_tolerance": _AT_LEAST_0,
    "optimizer.change_tolerance": _AT_LEAST_0,
    "optimizer.evaluations_max": _AT_LEAST_1,
    "optimizer.l1": _AT_LEAST_0,
    "optimizer.schedule.warmup": _BELOW_1,
    "optimizer.schedule.factor": _ABOVE_0,
    "optimizer.schedule.every": _AT_LEAST_1,
    "optimizer.schedule.initial": _AT_LEAST_0,
    "optimizer.schedule.final": _AT_LEAST_0,
    "train.passes": _AT_LEAST_1,
    "train.batch": _AT_LEAST_1,
    "train.n_fetch": _AT_LEAST_1,
    "train.n_push": _AT_LEAST_1,
    "train.local_lr": _AT_LEAST_0,
    "train.warmstart_steps": _AT_LEAST_0,
    "train.pass_fraction": _SHARE,
    "train.range_batches": _AT_LEAST_1,
    "train.evaluate_every": _ABOVE_0,
    "train.target": Limit("of top-1 above 0 and at most 1", isfinite),
    "train.checkpoint_every": _AT_LEAST_0,
    "train.checkpoint_keep": _AT_LEAST_1,
    "train.patience": _AT_LEAST_1,
    "train.max_staleness": _AT_LEAST_1,
    "cluster.workers": _AT_LEAST_1,
    "cluster.threads": _AT_LEAST_1,
    "cluster.ps": _AT_LEAST_0,
    "cluster.apply_threads": _AT_LEAST_1,
    "cluster.data": _AT_LEAST_1,
    "cluster.replication": Limit(f"from 1 to {REPLICATION_MAX}", lambda value: 1 <= value <= REPLICATION_MAX),
    "cluster.min_in_sync": _AT_LEAST_1,
    "cluster.connections": Limit("from 1 to 16", lambda value: 1 <= value <= 16),
    "cluster.partitions": Limit(f"from 1 to {PARTITIONS_MAX}", lambda value: 1 <= value <= PARTITIONS_MAX),
    "cluster.flights": Limit(f"from 1 to {FLIGHTS_MAX}", lambda value: 1 <= value <= FLIGHTS_MAX),
    "cluster.loss_window_s": Limit("above 0 and at most 3600", lambda value: 0 < value <= 3600),
    "cluster.loss_window_bytes": _AT_LEAST_1,
}
"""Ranges that depend on one key only; `adamctl.config.conflicts` checks what depends on two."""
_PLUG_INS: Final[dict[KeyPath, tuple[Callable[[str], bool], Callable[[], list[str]]]]] = {
    ("data", "format"): (formats.is_format, formats.formats),
    ("optimizer", "type"): (algorithms.is_type, algorithms.types),
}
"""Keys whose values installed packages add to: whether there is a name, and all there are."""


def structure_problems(values: dict[str, Any]) -> list[Problem]:
    """Returns why plain values cannot become an `Experiment`: unknown and missing keys, wrong types and ranges."""
    return list(_check(values, inspect.type_info(Experiment), ()))


def data_problems(values: dict[str, Any]) -> list[Problem]:
    """Returns why plain values cannot become the `[data]` of an experiment."""
    return list(_check(values, inspect.type_info(DataConfig), ("data",)))


def leaf_keys(kind: inspect.Type | None = None, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yields every key of an experiment outside `model`, in the order of the structs."""
    node = inspect.type_info(Experiment) if kind is None else kind
    assert isinstance(node, inspect.StructType)
    for field in node.fields:
        if isinstance(field.type, inspect.StructType) and field.name != "model":
            yield from leaf_keys(field.type, (*path, field.name))
        elif field.name != "model":
            yield (*path, field.name)


def show(value: object) -> str:
    """Returns a value in TOML's notation, shortened."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = f'"{value}"'
    elif isinstance(value, (list, tuple)):
        text = "[" + ", ".join(show(item) for item in value) + "]"
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, int) and value.bit_length() > _DECIMAL_BITS_MAX:
        text = hex(value)
    else:
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Returns ` Did you mean "x"?` for the nearest candidate, or nothing."""
    close = get_close_matches(word, list(candidates), n=1, cutoff=0.66)
    return f' Did you mean "{close[0]}"?' if close else ""


def _check(value: Any, kind: inspect.Type, path: KeyPath) -> Iterator[Problem]:
    if isinstance(kind, inspect.StructType):
        yield from _check_struct(value, kind, path)
    elif isinstance(kind, inspect.UnionType) and all(isinstance(option, inspect.StructType) for option in kind.types):
        yield from _check_tagged(value, kind, path)
    elif isinstance(kind, inspect.DictType):
        if not isinstance(value, dict):
            yield Problem(path, f"found {show(value)}; expected a table.")
            return
        for key, item in value.items():
            yield from _check(item, kind.value_type, (*path, key))
    elif isinstance(value, dict) and (tables := [one for one in _options(kind) if isinstance(one, inspect.StructType)]):
        yield from _check_struct(value, tables[0], path)
    elif isinstance(value, dict) and (named := [one for one in _options(kind) if isinstance(one, inspect.DictType)]):
        yield from _check(value, named[0], path)
    elif isinstance(kind, inspect.VarTupleType):
        if not isinstance(value, (list, tuple)):
            yield _wrong(path, value, kind)
            return
        for index, item in enumerate(value):
            yield from _check(item, kind.item_type, (*path, index))
    elif not _fits(value, kind):
        yield _wrong(path, value, kind)
    elif path in _PLUG_INS and not _PLUG_INS[path][0](value):
        names = _PLUG_INS[path][1]()
        allowed = ", ".join(map(show, names))
        yield Problem(path, f"found {show(value)}; expected one of {allowed}.{suggestion(value, names)}")
    else:
        limit = LIMITS.get(dotted(path))
        if limit is not None and isinstance(value, (int, float)) and not limit.holds(value):
            yield Problem(path, f"found {show(value)}; expected {_allowed(kind)}, {limit.allowed}.")


def _check_struct(value: Any, kind: inspect.StructType, path: KeyPath) -> Iterator[Problem]:
    if not isinstance(value, dict):
        yield Problem(path, f"found {show(value)}; expected a table.")
        return
    fields = {field.encode_name: field for field in kind.fields}
    names = [kind.tag_field, *fields] if kind.tag_field else list(fields)
    for key, item in value.items():
        if key in fields:
            yield from _check(item, fields[key].type, (*path, key))
        elif key not in names:
            yield Problem((*path, key), f"unknown key.{_spelling(key, names, path)} Allowed here: {', '.join(names)}.")
    for name, field in fields.items():
        if field.required and name not in value:
            owner = f"a {kind.tag} layer" if kind.tag_field else dotted(path) or "an experiment"
            tables = isinstance(field.type, inspect.VarTupleType) and _allowed(field.type) == "a list of tables"
            wanted = f"at least one [[{dotted((*path, name))}]]" if tables else f"{name} = {_allowed(field.type)}"
            yield Problem((*path, name), f"missing; {owner} needs {wanted}.")


OTHER_WORDS = {
    "learning_rate": "lr",
    "learningrate": "lr",
    "epochs": "passes",
    "num_epochs": "passes",
    "max_epochs": "passes",
    "batch_size": "batch",
    "minibatch": "batch",
    "early_stopping": "patience",
    "validation_split": "validation",
    "val_split": "validation",
    "random_seed": "seed",
    "stratified": "stratify",
    "l2": "weight_decay",
    "optimiser": "optimizer",
    "gradient_clip": "clip_norm",
    "max_norm": "clip_norm",
    "num_workers": "workers",
    "kernel_size": "kernel",
    "out_channels": "filters",
    "channels": "filters",
    "neurons": "units",
}
"""Names that other programs use for our keys."""


def _spelling(key: str, names: list[str], path: KeyPath) -> str:
    meant = OTHER_WORDS.get(key.lower().replace("-", "_"), key)
    if meant != key and meant in names:
        return f' Did you mean "{meant}"?'
    near = suggestion(key, names)
    if near:
        return near
    homes = [dotted(leaf) for leaf in leaf_keys() if leaf[-1] == meant and leaf[:-1] != path]
    return f' Did you mean "{homes[0]}"?' if homes else ""


def _check_tagged(value: Any, kind: inspect.UnionType, path: KeyPath) -> Iterator[Problem]:
    options = {str(option.tag): option for option in kind.types if isinstance(option, inspect.StructType)}
    has_custom = options.pop(_CUSTOM, None) is not None
    allowed = ", ".join(f'"{tag}"' for tag in (*options, *(BUILT_IN_LAYERS if has_custom else ())))
    if has_custom:
        allowed += ', or a class of your own as "module:Class"'
    if not isinstance(value, dict):
        yield Problem(path, f"found {show(value)}; expected a table with type = one of {allowed}.")
        return
    tag = value.get("type")
    if tag is None:
        yield Problem((*path, "type"), f"missing; expected one of {allowed}.")
    elif has_custom and tag != _CUSTOM and is_custom(tag):
        yield from _check_custom(value, path)
    elif tag not in options:
        near = suggestion(str(tag), (*options, *BUILT_IN_LAYERS))
        yield Problem((*path, "type"), f"found {show(tag)}; expected one of {allowed}.{near}")
    else:
        yield from _check_struct(value, options[tag], path)


def _check_custom(value: dict[str, Any], path: KeyPath) -> Iterator[Problem]:
    """Yields keys of a layer of the user's own that are not plain; its class says later what they may be."""
    for key, item in value.items():
        items = item if isinstance(item, (list, tuple)) else [item]
        if not all(isinstance(one, (bool, int, float, str)) for one in items):
            yield Problem((*path, key), f"found {show(item)}; expected {_ALLOWED_PLAIN}.")


def _wrong(path: KeyPath, value: object, kind: inspect.Type) -> Problem:
    literals = [option for option in _options(kind) if isinstance(option, inspect.LiteralType)]
    choices = [str(choice) for literal in literals for choice in literal.values]
    near = suggestion(value, choices) if isinstance(value, str) else ""
    if not near and isinstance(value, str) and _fits(_unquoted(value), kind):
        near = f" Write it without quotes: {value}."
    if isinstance(kind, inspect.VarTupleType) and _fits(value, kind.item_type):
        near = f" Write it in brackets: [{show(value)}]."
    return Problem(path, f"found {show(value)}; expected {_allowed(kind)}.{near}")


def _unquoted(text: str) -> object:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text)


def _options(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _fits(value: object, kind: inspect.Type) -> bool:
    for option in _options(kind):
        if isinstance(option, inspect.LiteralType) and value in option.values:
            return True
        if isinstance(option, inspect.NoneType) and value is None:
            return True
        if isinstance(option, inspect.IntType) and isinstance(value, int) and not isinstance(value, bool):
            return True
        if isinstance(option, inspect.FloatType) and isinstance(value, (int, float)) and not isinstance(value, bool):
            return _is_finite(value)
        if isinstance(option, inspect.StrType) and isinstance(value, str):
            return True
        if isinstance(option, inspect.BoolType) and isinstance(value, bool):
            return True
        if isinstance(option, inspect.VarTupleType) and isinstance(value, (list, tuple)):
            return all(_fits(item, option.item_type) for item in value)
        if isinstance(option, inspect.TupleType) and isinstance(value, (list, tuple)):
            items = zip(value, option.item_types, strict=False)
            return len(value) == len(option.item_types) and all(_fits(item, of) for item, of in items)
    return False


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number beyond all floating-point numbers
        return False


_PLAIN = (inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType)
_ALLOWED_PLAIN = "a number, text in quotes, true, false, or a list of these"


def _allowed(kind: inspect.Type) -> str:
    if {type(option) for option in _options(kind)} >= set(_PLAIN):
        return _ALLOWED_PLAIN
    words: list[str] = []
    for option in _options(kind):
        if isinstance(option, inspect.LiteralType):
            quoted = [show(value) for value in option.values]
            words.append(quoted[0] if len(quoted) == 1 else "one of " + ", ".join(quoted))
        elif isinstance(option, inspect.IntType):
            words.append("a whole number")
        elif isinstance(option, inspect.FloatType):
            words.append("a number")
        elif isinstance(option, inspect.StrType):
            words.append("text in quotes")
        elif isinstance(option, inspect.BoolType):
            words.append("true or false")
        elif isinstance(option, inspect.TupleType):
            words.append("[" + ", ".join(_allowed(of) for of in option.item_types) + "]")
        elif isinstance(option, inspect.VarTupleType):
            words.append(f"a list of {_plural(_allowed(option.item_type))}")
        elif isinstance(option, (inspect.StructType, inspect.UnionType, inspect.DictType)):
            words.append("a table")
    return " or ".join(dict.fromkeys(words))


def _plural(words: str) -> str:
    return {"a whole number": "whole numbers", "a number": "numbers", "a table": "tables"}.get(words, words)
