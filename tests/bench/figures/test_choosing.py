"""Rates are chosen on a validation part, for all modes at once, or are those that the module has."""

from __future__ import annotations

from adamctl.bench.figures.choosing import Choice, around, chosen, is_searched, key_of
from adamctl.bench.figures.rounds import Rounds
from tests.bench.figures.fake_trainings import keep

FIXED = Choice(0.1, 1.0)
CHOICES = around(0.15, (1.0, 3.0))
MODES = ("free", "in-step")
TRIED = {choice: [key_of("valid", choice.name, mode) for mode in MODES] for choice in CHOICES}


def searched(top1: dict[tuple[Choice, str], float]) -> Rounds:
    rounds = Rounds()
    for (choice, mode), value in top1.items():
        keep(rounds, key_of("valid", choice.name, mode), {"result": {"top1": value}})
    return rounds


def test_three_rates_a_factor_of_three_apart_are_tried_with_each_limit() -> None:
    assert [choice.lr for choice in CHOICES] == [0.05, 0.15, 0.45] * 2
    assert [choice.clip_norm for choice in CHOICES] == [1.0] * 3 + [3.0] * 3


def test_without_a_search_what_is_fixed_counts() -> None:
    assert chosen(Rounds(), TRIED, FIXED) == FIXED


def test_an_unfinished_search_does_not_count() -> None:
    every = {(choice, mode): 0.5 for choice in CHOICES for mode in MODES}
    every.pop((CHOICES[-1], "in-step"))
    assert chosen(searched(every), TRIED, FIXED) == FIXED


def test_the_mean_of_all_modes_decides() -> None:
    """Neither mode's own favourite wins here."""
    values = {(choice, mode): 0.5 for choice in CHOICES for mode in MODES}
    values[CHOICES[0], "free"], values[CHOICES[0], "in-step"] = 0.9, 0.3
    values[CHOICES[2], "free"], values[CHOICES[2], "in-step"] = 0.3, 0.9
    values[CHOICES[4], "free"], values[CHOICES[4], "in-step"] = 0.7, 0.7
    assert chosen(searched(values), TRIED, FIXED) == CHOICES[4]


def test_of_equal_choices_the_first_is_taken_and_one_that_diverged_counts_as_nothing() -> None:
    rounds = Rounds()
    for rate, result in ((0.03, {}), (0.1, {"top1": 0.9}), (0.3, {"top1": 0.9})):
        keep(rounds, key_of("sgd", f"{rate}"), {"result": result})
    tried = {rate: [key_of("sgd", f"{rate}")] for rate in (0.03, 0.1, 0.3)}
    assert chosen(rounds, tried, 0.01) == 0.1 and is_searched(rounds, tried)
    assert not is_searched(rounds, tried | {1.0: [key_of("sgd", "1.0")]})


def test_a_rounds_key_tells_its_rate_and_limit() -> None:
    assert Choice(0.15, 1.0).name == "lr-0.15-clip-1"
    assert Choice(0.15, 1.0).settings == {"optimizer.lr": 0.15, "optimizer.clip_norm": 1.0}
