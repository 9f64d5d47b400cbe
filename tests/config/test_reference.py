"""The reference page: every key with its meaning, every format with its picture (tests/test_house.py compares)."""

from __future__ import annotations

from typing import get_args, get_type_hints

import msgspec
import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.config.check import LIMITS
from adamctl.config.experiment import Experiment
from adamctl.config.formats import BUILT_IN
from adamctl.config.reference import SECTIONS, meanings, page
from adamctl.config.reference_text import FORMATS
from adamctl.model.description import Layer

STRUCTS = [struct for _, struct in SECTIONS] + list(get_args(Layer))


def keys(struct: type[msgspec.Struct]) -> list[str]:
    """The keys that a user writes as values, not as tables of their own."""
    kinds = get_type_hints(struct)
    tables = {name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, msgspec.Struct)}
    return [name for name in struct.__struct_fields__ if name not in tables]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_key_has_a_meaning_and_nothing_else_has_one(struct: type[msgspec.Struct]) -> None:
    told = {name for name, text in meanings(struct).items() if text}
    assert told == set(keys(struct))


def test_every_table_of_an_experiment_is_there() -> None:
    found = {path for path, _ in SECTIONS}
    for path, struct in SECTIONS:
        tables = set(struct.__struct_fields__) - set(keys(struct))
        assert {f"{path}.{name}".lstrip(".") for name in tables} <= found
    assert dict(SECTIONS)[""] is Experiment


def test_every_format_has_a_picture_but_the_one_without_files() -> None:
    assert tuple(FORMATS) == BUILT_IN
    assert {name for name, text in FORMATS.items() if "├── " not in text} == {"digits"}


def test_types_defaults_and_ranges_are_the_programs_own() -> None:
    text = page()
    for row in (
        "| `batch` | whole number | `32` | at least 1 | examples per step of one thread. Under",
        '| `threads` | whole number or text | `"auto"` | `auto`, at least 1 | compute threads of each worker.',
        "| `nesterov` | `true` or `false` | `false` |",
        "| `clip_norm` | number | unset | above 0 |",
        "| `name` | text | needed |",
        "| `kernel` | whole number or list of 2 whole numbers | needed |",
        '### `type = "local_contrast_norm"`',
    ):
        assert row in text
    assert all(limit.allowed in text for limit in LIMITS.values())


def test_the_command_prints_it() -> None:
    result = CliRunner().invoke(application, ["config", "reference"])
    assert result.exit_code == 0 and result.output == page()
