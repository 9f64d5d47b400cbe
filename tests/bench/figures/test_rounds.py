"""What a figure has measured is kept round by round: whatever ends it, it goes on where it was."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.errors import ConfigurationError, RunFailedError


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


def test_a_file_with_a_line_that_was_cut_off_is_never_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk that would lose what it holds."""
    path = tmp_path / "rounds.jsonl"
    path.write_text('{"round": "one", "value": 1}\n{"round": "two", "val')
    monkeypatch.setattr(Path, "write_text", lambda *given, **more: pytest.fail("it is written anew"))
    assert "one" in Rounds(path)
    assert path.read_text() == '{"round": "one", "value": 1}\n'


def test_on_a_full_disk_a_round_is_written_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rounds.jsonl"
    rounds = Rounds(path)
    rounds.take("one", lambda: 1)
    opened = Path.open

    class Full:
        """A file on a disk that has room for ten more letters."""

        def __init__(self, path: Path, *given: Any, **more: Any) -> None:
            self._stream = opened(path, *given, **more)

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *raised: object) -> None:
            self._stream.close()

        def write(self, text: str) -> None:
            self._stream.write(text[:10])
            self._stream.flush()
            raise OSError(28, os.strerror(28))

    with monkeypatch.context() as full:
        full.setattr(Path, "open", lambda path, *given, **more: Full(path, *given, **more))
        for _ in range(2):
            with pytest.raises(RunFailedError, match=r"rounds\.jsonl cannot be written \(No space left on device\)"):
                rounds.take("two", lambda: 2)
    assert "two" not in rounds
    rounds.take("two", lambda: 2)
    assert Rounds(path).to_json()["rounds"] == {"one": 1, "two": 2}


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailedError, match=r"cannot be written \(Not a directory|cannot be written \(File exists"):
        Rounds(tmp_path / "file" / "figure" / "rounds.jsonl").take("one", lambda: 1)


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
