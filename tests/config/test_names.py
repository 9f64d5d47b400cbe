"""What nodes and roles may be called, and what of others' text a terminal gets."""

import pytest

from adamctl.config.names import as_name, derived_name, in_short, is_name, printable


@pytest.mark.parametrize("name", ["ps-1", "w", "a.b_C-9", "x" * 128])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\n", "\x1b[2J", "é", "x" * 129, "[red]", "a\u202eb", "\ud800"])
def test_what_is_no_name(name: str) -> None:
    assert not is_name(name)


def test_any_text_becomes_a_name() -> None:
    assert as_name("my host/ä") == "my_host__"
    assert is_name(as_name("\x1b" * 300))


def test_parts_of_nodes_have_names_too() -> None:
    assert derived_name("worker-1", "part-2") == "worker-1.part-2"
    assert is_name(derived_name("x" * 128, "part-2"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("as it is, ä and 漢", "as it is, ä and 漢"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\r\nb\t", "a\\r\\nb\\t"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
        ("turned \u202e round", "turned \\u202e round"),
        ("half \ud800 of a pair", "half \\ud800 of a pair"),
        ("\u2028next line\x85", "\\u2028next line\\x85"),
    ],
)
def test_what_is_not_printable_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


def test_the_end_of_a_line_stays_where_it_is_ours() -> None:
    assert printable("a\n\x1bb", keep="\n") == "a\n\\x1bb"


def test_a_text_in_short_says_that_it_was_cut() -> None:
    assert in_short("a\x1bb", 10) == "a\\x1bb"
    assert in_short("x" * 10, 10) == "x" * 10
    assert in_short("x" * 11, 10) == "x" * 10 + "... (cut; 11 characters)"
    assert in_short("\u202e" * 10, 10) == "\\u202e\\u202e\\u202e\\u202e"[:10] + "... (cut; 10 characters)"
    assert len(in_short("\0" * 1_000_000)) < 5_000
