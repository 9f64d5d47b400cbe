"""Rates are chosen on a validation part, for all modes at once, or are those that the module has."""

from __future__ import annotations

from adamctl.bench.figures.choosing import Choice, around, chosen, key_of
from adamctl.bench.figures.rounds import Rounds
from tests.bench.figures.fake_trainings import keep

FIXED = Choice(0.1, 1.0)
TRIED = around(0.15, (1.0, 3.0))
MODES = ("free", "in-step")


def searched(top1: dict[tuple[Choice, str], float]) -> Rounds:
    rounds = Rounds()
    for (choice, mode), value in top1.items():
        keep(rounds, key_of("valid", choice, mode), {"result": {"top1": value}})
    return rounds


def test_three_rates_a_factor_of_three_apart_are_tried_with_each_limit() -> None:
    assert [choice.lr for choice in TRIED] == [0.05, 0.15, 0.45] * 2
    assert [choice.clip_norm for choice in TRIED] == [1.0] * 3 + [3.0] * 3


def test_without_a_search_what_is_fixed_counts() -> None:
    assert chosen(Rounds(), "valid", TRIED, MODES, FIXED) == FIXED


def test_an_unfinished_search_does_not_count() -> None:
    every = {(choice, mode): 0.5 for choice in TRIED for mode in MODES}
    every.pop((TRIED[-1], "in-step"))
    assert chosen(searched(every), "valid", TRIED, MODES, FIXED) == FIXED


def test_the_mean_of_all_modes_decides() -> None:
    """Neither mode's own favourite wins here."""
    values = {(choice, mode): 0.5 for choice in TRIED for mode in MODES}
    values[TRIED[0], "free"], values[TRIED[0], "in-step"] = 0.9, 0.3
    values[TRIED[2], "free"], values[TRIED[2], "in-step"] = 0.3, 0.9
    values[TRIED[4], "free"], values[TRIED[4], "in-step"] = 0.7, 0.7
    assert chosen(searched(values), "valid", TRIED, MODES, FIXED) == TRIED[4]


def test_a_rounds_key_tells_its_rate_and_limit() -> None:
    assert Choice(0.15, 1.0).name == "lr-0.15-clip-1"
    assert Choice(0.15, 1.0).settings == {"optimizer.lr": 0.15, "optimizer.clip_norm": 1.0}
