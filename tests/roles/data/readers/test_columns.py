"""Which columns of a table are what."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.config.data import ColumnsConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.readers.columns import Columns, choose_columns, in_test_part, labels_of_texts, row_shape


@pytest.mark.parametrize(
    ("names", "config", "chosen"),
    [
        (("a", "b", "c"), ColumnsConfig(), Columns(2, (), (0, 1))),
        (("Label", "b", "c"), ColumnsConfig(), Columns(0, (), (1, 2))),
        (("a", "class", "c"), ColumnsConfig(), Columns(1, (), (0, 2))),
        (("a", "label", "c"), ColumnsConfig(label="a"), Columns(0, (), (1, 2))),
        (("a", "b", "c"), ColumnsConfig(label=0, inputs=("c", 1)), Columns(0, (), (2, 1))),
        (("a", "label", "c"), ColumnsConfig(targets=("c",)), Columns(None, (2,), (0, 1))),
        (("a", "b", "c"), ColumnsConfig(targets=(2, "a"), inputs=("b",)), Columns(None, (2, 0), (1,))),
    ],
)
def test_label_or_targets_and_inputs(names: tuple[str, ...], config: ColumnsConfig, chosen: Columns) -> None:
    assert choose_columns(names, config, "table") == chosen


@pytest.mark.parametrize(
    ("names", "config", "said"),
    [
        (("a", "b"), ColumnsConfig(label="c"), "data.columns.label: found 'c'; expected one of the 2 columns of table"),
        (("a", "b"), ColumnsConfig(label=2), "found 2;"),
        (("a", "a", "b"), ColumnsConfig(inputs=("a",)), "data.columns.inputs: found 'a'; .* that only one has"),
        (("a", "b"), ColumnsConfig(inputs=("a", 0)), "expected each column once"),
        (("a", "b"), ColumnsConfig(inputs=("b",)), "not the label 'b'"),
        (("a",), ColumnsConfig(), "at least one other column"),
        (("a", "b"), ColumnsConfig(targets=("a", "b")), "at least one other column"),
        (("a", "b"), ColumnsConfig(targets=("c",)), "data.columns.targets: found 'c'; expected one of the 2 columns"),
        (("a", "b"), ColumnsConfig(targets=("a", 0)), "data.columns.targets: expected each column once; found a, a"),
        (("a", "b"), ColumnsConfig(targets=("a",), inputs=("a",)), "data.columns.inputs: .*, and not the targets 'a'"),
        (("a", "b"), ColumnsConfig("a", ("b",)), "expected a label or targets; found label 'a' and targets"),
    ],
)
def test_what_cannot_be_chosen_is_named(names: tuple[str, ...], config: ColumnsConfig, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        choose_columns(names, config, "table")


def test_labels_are_numbers_or_else_names() -> None:
    assert labels_of_texts(["2", "0", "1.0"]) == ((), [2, 0, 1])
    assert labels_of_texts(["b", "a"]) == (("a", "b"), [1, 0])
    assert labels_of_texts(["1", "-1"]) == (("-1", "1"), [1, 0])


def test_a_row_takes_the_shape_of_the_input() -> None:
    assert row_shape(4, None, "table") == (4,) and row_shape(4, (2, 2, 1), "table") == (2, 2, 1)
    with pytest.raises(ConfigurationError, match=r"input is \[5\], 5 numbers, but table has 4 .* model.input = \[4\]"):
        row_shape(4, (5,), "table")


def test_a_fifth_of_the_rows_is_for_tests_wherever_one_begins() -> None:
    whole = in_test_part(0, 100_000)
    assert abs(whole.mean() - 0.2) < 0.005
    assert np.array_equal(whole[777:1777], in_test_part(777, 1000))
