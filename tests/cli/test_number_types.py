"""Flags that take a number take finite ones in their range, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from adamctl.cli.main import application
from adamctl.cli.number_types import (
    ABOVE_ZERO,
    BYTES_PER_S,
    DEADLINE_S,
    FINITE,
    PARTITIONS_MOST,
    SECONDS,
    Counts,
    Machines,
    Number,
    Numbers,
    Quantity,
)
from adamctl.model.partition.cuts import PARTITIONS_MAX


def flags(command: click.Command, path: str = "adamctl") -> Iterator[tuple[str, click.Parameter]]:
    """Yields every parameter of every command that takes a number with a fraction."""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from flags(found, f"{path} {name}")
        return
    for parameter in command.params:
        if isinstance(parameter.type, (click.types.FloatParamType, Numbers)):
            yield f"{path} {parameter.opts[0]}", parameter


FLAGS = dict(flags(application))


def test_flags_that_take_a_number_are_found() -> None:
    some = ["bench store --hours", "bench failover --lease", "bench ps-throughput --block-kib", "ckpt save --wait"]
    for flag in (*some, "train --target", "top --interval", "controller start --lease", "ps start --stop-deadline"):
        assert f"adamctl {flag}" in FLAGS


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "many"])
def test_none_takes_what_is_not_finite(flag: str, text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"found {text}"):
        FLAGS[flag].type.convert(text, FLAGS[flag], None)


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (ABOVE_ZERO, "0", "expected a number above 0 and at most 1,000,000; found 0"),
        (ABOVE_ZERO, "1e6x", "found 1e6x"),
        (ABOVE_ZERO, "1000001", "found 1000001"),
        (DEADLINE_S, "-1", "expected a number from 0 to 1,000,000; found -1"),
        (FINITE, "nan", "expected a finite number; found nan"),
        (Number(least=2, most=3), "1.5", "expected a number from 2 to 3; found 1.5"),
    ],
)
def test_what_is_refused_is_said_as_it_was_typed(kind: Number, wrong: str, said: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        kind.convert(wrong, None, None)
    assert caught.value.message.endswith(said)


@pytest.mark.parametrize("flag", FLAGS)
def test_help_shows_a_range_only_if_there_is_one(flag: str) -> None:
    context = click.Context(click.Command("any"))
    record = FLAGS[flag].get_help_record(context)
    assert record is None or "None" not in record[1]


def test_ends_of_a_range_and_lists() -> None:
    assert DEADLINE_S.convert("0", None, None) == 0
    assert ABOVE_ZERO.convert("1e6", None, None) == 1e6
    assert FINITE.convert("-2.5", None, None) == -2.5
    assert Numbers(ABOVE_ZERO).convert("1, 2.5", None, None) == (1, 2.5)
    for wrong in ("", "1,", "1;2", "1,0"):
        with pytest.raises(click.BadParameter, match="separate several numbers by commas"):
            Numbers(ABOVE_ZERO).convert(wrong, None, None)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (BYTES_PER_S, "1Gbit", 125e6),
        (BYTES_PER_S, "2.5 Mbit", 312_500.0),
        (BYTES_PER_S, "10MB", 1e7),
        (SECONDS, "100us", 1e-4),
        (SECONDS, "0ms", 0.0),
    ],
)
def test_quantities_have_units(kind: Quantity, text: str, value: float) -> None:
    assert kind.convert(text, None, None) == pytest.approx(value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(BYTES_PER_S, "1"), (BYTES_PER_S, "0Mbit"), (BYTES_PER_S, "1gbit"), (SECONDS, "-1s"), (SECONDS, "nan s")],
)
def test_a_quantity_without_its_unit_or_range_is_refused(kind: Quantity, text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"found {text}"):
        kind.convert(text, None, None)


def test_counts_are_different_whole_numbers() -> None:
    assert Counts(9).convert("4, 1,4", None, None) == (4, 1)
    for text in ("", "0", "10", "1,,2", "1.5", "-1"):
        with pytest.raises(click.BadParameter, match="expected whole numbers from 1 to 9, such as 1,2,4"):
            Counts(9).convert(text, None, None)


def test_most_partitions_are_those_of_an_experiment() -> None:
    assert PARTITIONS_MOST == PARTITIONS_MAX


def test_numbers_of_machines_are_listed_or_doubled() -> None:
    for text, numbers in (("1..9", (1, 2, 4, 8, 9)), ("3..24", (3, 6, 12, 24)), ("5..5", (5,)), ("8, 2,8", (8, 2))):
        assert Machines().convert(text, None, None) == numbers
    assert len(Machines().convert("1..1000", None, None)) == 11
    for text in ("", "0", "9..1", "1..", "1..99999", "2,x", "1...3", "-1"):
        with pytest.raises(click.BadParameter, match=f"such as 1,10,100 or 1..1000; found {text}"):
            Machines().convert(text, None, None)
