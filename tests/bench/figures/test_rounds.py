"""What a figure has measured is kept round by round: whatever ends it, it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.errors import ConfigurationError


def test_a_round_is_measured_once(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path / "figure" / "rounds.jsonl")
    rounds.start({"load_1_minute": 0.5})
    assert rounds.take("a/round-1", lambda: {"rate": (1, 2)}) == {"rate": [1, 2]}  # as it is read again
    again = Rounds(tmp_path / "figure" / "rounds.jsonl")
    assert again.take("a/round-1", lambda: pytest.fail("it was measured")) == {"rate": [1, 2]}
    assert again.starts == [{"load_1_minute": 0.5}] and not again.is_done
    again.finish()
    assert Rounds(tmp_path / "figure" / "rounds.jsonl").is_done


def test_rounds_of_one_setting_are_found_by_it(tmp_path: Path) -> None:
    rounds = Rounds()
    for key, value in (("a/round-1", 1), ("ab/round-1", 2), ("a/round-2", 3)):
        rounds.take(key, lambda value=value: value)
    assert rounds.under("a") == rounds.all_of("a") == [1, 3] and rounds.under("b") == []
    with pytest.raises(MissingRoundError, match="expected the round b/round-1"):
        rounds.all_of("b")
    with pytest.raises(MissingRoundError, match="expected the round b/seed-1"):
        rounds.all_of("b", "seed-1")
    with pytest.raises(MissingRoundError, match="expected the round a/round-3; found a/round-1, ab/round-1"):
        rounds["a/round-3"]


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    Rounds(path).take("one", lambda: 1)
    with path.open("a") as stream:
        stream.write('{"round": "two", "val')
    rounds = Rounds(path)
    assert "one" in rounds and "two" not in rounds
    rounds.take("two", lambda: 2)
    assert Rounds(path)["two"] == 2


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": "one", "value": 1}\n{"other": 1}\n')
    with pytest.raises(ConfigurationError, match=r"line 2: expected a round; found .*give another --folder"):
        Rounds(path)


def test_rounds_of_a_report_are_taken_over_but_replace_nothing(tmp_path: Path) -> None:
    old, new = Rounds(), Rounds(tmp_path / "rounds.jsonl")
    old.start({"date": "then"})
    old.take("one", lambda: 1)
    old.take("two", lambda: 2)
    old.finish()
    new.take("one", lambda: 10)
    new.take_over(old.to_json())
    assert (new["one"], new["two"], new.starts, new.is_done) == (10, 2, [{"date": "then"}], True)
    new.take_over(old.to_json())
    assert new.starts == [{"date": "then"}]  # nothing was new
    with pytest.raises(ConfigurationError, match="expected `starts` and `rounds`"):
        new.take_over({"rounds": 3})
