"""A part is judged by its own bar, and says what else was found."""

from __future__ import annotations

from adamctl.bench.bars import Bar, row_of

RATE = Bar("images/s, against a peer", 0.95, at_least=True)
SHARE = Bar("waiting", 0.02)


def test_a_part_is_judged_by_its_bar_and_says_what_else_was_found() -> None:
    row = row_of("images", RATE, {"ratio": 0.94, "network": "n"}, 1.5)
    assert (row["part"], row["what"], row["bar"]) == ("images", "images/s, against a peer", ">= 0.95")
    assert (row["meets"], row["load_1_minute"], row["details"]) == (False, 1.5, {"network": "n"})
    assert row_of("images", RATE, {"ratio": 0.95}, 0.0)["meets"] is True
    assert row_of("waiting", SHARE, {"ratio": 0.021}, 0.0)["meets"] is False
    assert row_of("waiting", SHARE, {"cannot": "no memory"}, 0.0)["meets"] is None
