"""`bench figures` measures what is not there yet, draws what is, and says where it was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from adamctl.bench.figures import figures, parts
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.figures import Asked, run_figures
from adamctl.bench.figures.machines import LOAD_MOST
from adamctl.bench.figures.picture import QUICK, words_of
from adamctl.bench.figures.session import FigureSettings
from adamctl.errors import ConfigurationError, RunFailedError
from adamctl.roles.folder_lock import FolderLock
from tests.bench.figures.fake_part import PART, FakeModule

pytest.importorskip("matplotlib")
Use = Callable[[FakeModule], FakeModule]


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes the figure `fake` of a module."""
    monkeypatch.setattr(figures, "PARTS", {"fake": PART, "other": replace(PART, has_rates=False)})
    monkeypatch.setattr(figures, "draw", drawn_fast)

    def use(module: FakeModule) -> FakeModule:
        monkeypatch.setattr(parts.Part, "load", lambda part: module)
        return module

    return use


def drawn_fast(figure: Figure, title: str, path: Path, *, is_quick: bool) -> None:
    """Writes what a picture would say: pictures have a test of their own."""
    path.write_text("\n".join([title, *[QUICK] * is_quick, *words_of(figure)]))


def asked(tmp_path: Path, **given: Any) -> Asked:
    settings = FigureSettings(is_quick=given.pop("is_quick", False), searches=given.pop("searches", False))
    return Asked(given.pop("names", ("fake",)), tmp_path / "figures", settings, **given)


def test_settings_alternate_and_the_report_has_all_rounds(tmp_path: Path, use: Use) -> None:
    module = use(FakeModule())
    (result,) = run_figures(asked(tmp_path))["results"]
    assert module.measured == [f"{name}/round-{number}" for number in (1, 2, 3) for name in ("1", "2")]
    assert result["rounds"]["2/round-3"] == 2.03 and result["done"]
    assert result["panels"][0]["lines"][0]["points"][1] == {
        "x": 2,
        "y": 2.02,
        "low": 2.01,
        "high": 2.03,
        "beyond": False,
    }
    assert [bar["outcome"] for bar in result["bars"]] == ["met", "not settled"]
    assert (
        "commit" in result["sentences"][-1] and result["starts"][0]["machine"]["processor"] in result["sentences"][-1]
    )
    assert (tmp_path / "figures" / "fake" / "figure.svg").read_text().startswith(PART.title)
    report = json.loads((tmp_path / "figures" / "fake" / "report.json").read_text())
    assert report["results"][0]["rounds"] == result["rounds"]


def test_one_that_was_interrupted_goes_on(tmp_path: Path, use: Use) -> None:
    use(FakeModule(fail_at="1/round-2"))
    with pytest.raises(KeyboardInterrupt):
        run_figures(asked(tmp_path))
    module = use(FakeModule())
    (result,) = run_figures(asked(tmp_path))["results"]
    assert module.measured == ["1/round-2", "2/round-2", "1/round-3", "2/round-3"]
    assert "by 2 runs of the command" in result["sentences"][-1]


def test_one_that_was_begun_on_another_machine_does_not_go_on_here(
    tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(FakeModule(fail_at="1/round-2"))
    with pytest.raises(KeyboardInterrupt):
        run_figures(asked(tmp_path))
    module = use(FakeModule())
    monkeypatch.setattr(figures, "describe_machine", lambda: {"cores": 16, "processor": "one of another kind"})
    with pytest.raises(ConfigurationError, match=r"begun on, \d+ cores of .*; found 16 cores of one of"):
        run_figures(asked(tmp_path))
    assert not module.measured


def test_two_processes_do_not_measure_in_one_folder(tmp_path: Path, use: Use) -> None:
    module = use(FakeModule())
    lock = FolderLock(tmp_path / "figures" / "fake", "--folder", "test")
    try:
        with pytest.raises(ConfigurationError, match=r"another process with this figure .* another --folder"):
            run_figures(asked(tmp_path))
    finally:
        lock.release()
    assert not module.measured
    run_figures(asked(tmp_path))


def test_one_that_is_done_is_drawn_again_and_not_measured(tmp_path: Path, use: Use) -> None:
    use(FakeModule())
    first = run_figures(asked(tmp_path))
    module, picture = use(FakeModule()), tmp_path / "again.png"
    assert run_figures(asked(tmp_path, output=picture))["results"] == first["results"]
    assert module.measured == [] and picture.read_text().startswith(PART.title)


def test_a_search_is_made_of_one_that_is_done_and_only_once(tmp_path: Path, use: Use) -> None:
    use(FakeModule())
    run_figures(asked(tmp_path))
    module = use(FakeModule())
    (result,) = run_figures(asked(tmp_path, searches=True))["results"]
    assert module.measured == ["search/round-1"] and len(result["starts"]) == 2
    (again,) = run_figures(asked(tmp_path, searches=True))["results"]
    assert module.measured == ["search/round-1"] and again == result


def test_a_picture_may_be_drawn_where_it_is(tmp_path: Path, use: Use) -> None:
    use(FakeModule())
    picture = tmp_path / "figures" / "fake" / "figure.svg"
    for output in (None, picture):
        run_figures(asked(tmp_path, output=output))
        assert picture.read_text().startswith(PART.title)


def test_a_report_that_cannot_be_written_is_told_and_rounds_are_kept(tmp_path: Path, use: Use) -> None:
    use(FakeModule())
    report = tmp_path / "figures" / "fake" / "report.json"
    report.mkdir(parents=True)
    with pytest.raises(RunFailedError, match=r"report\.json cannot be written .* the same call goes on"):
        run_figures(asked(tmp_path))
    report.rmdir()
    module = use(FakeModule())
    run_figures(asked(tmp_path))
    assert module.measured == [] and report.is_file()


def test_a_report_is_drawn_elsewhere_and_an_unfinished_one_goes_on(tmp_path: Path, use: Use) -> None:
    use(FakeModule())
    report = run_figures(asked(tmp_path / "here"))
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report))
    module = use(FakeModule())
    again = run_figures(asked(tmp_path / "there", names=(), found=(file,)))
    assert again["results"] == report["results"] and module.measured == []
    (one,) = report["results"]
    one["done"], one["rounds"] = False, {key: value for key, value in one["rounds"].items() if key < "2"}
    file.write_text(json.dumps(report))
    run_figures(asked(tmp_path / "third", names=(), found=(file,)))
    assert module.measured == ["2/round-1", "2/round-2", "2/round-3"]


def test_what_an_earlier_version_did_not_measure_is_measured(tmp_path: Path, use: Use) -> None:
    place = tmp_path / "figures" / "fake"
    place.mkdir(parents=True)
    (place / "rounds.jsonl").write_text('{"round": "2/round-1", "value": 2.5}\n{"done": true}\n')
    module = use(FakeModule())
    (result,) = run_figures(asked(tmp_path))["results"]
    assert "2/round-1" not in module.measured and result["rounds"]["2/round-1"] == 2.5


def test_a_quick_one_is_kept_apart_and_says_so(tmp_path: Path, use: Use) -> None:
    module = use(FakeModule())
    (result,) = run_figures(asked(tmp_path, is_quick=True))["results"]
    assert result["quick"] and len(module.measured) == 4
    assert "A TRY OF TINY SIZE" in (tmp_path / "figures" / "fake-quick" / "figure.svg").read_text()
    assert not (tmp_path / "figures" / "fake").exists()
    file = tmp_path / "figures" / "fake-quick" / "report.json"
    with pytest.raises(ConfigurationError, match=r"--from .*expected rounds without --quick"):
        run_figures(asked(tmp_path, found=(file,)))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"names": ("no-such",)}, "expected some of fake, other; found no-such"),
        ({"names": ()}, "found none"),
        (
            {"names": ("fake", "other"), "searches": True},
            "--search: expected figures with rates to choose, fake; found other",
        ),
        ({"names": ("fake", "other"), "output": Path("p.svg")}, "--output: expected one figure; found fake, other"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(
    tmp_path: Path, use: Use, given: dict[str, Any], expected: str
) -> None:
    module = use(FakeModule())
    with pytest.raises(ConfigurationError, match=expected):
        run_figures(asked(tmp_path, **given))
    assert module.measured == []


def test_a_report_with_a_figure_that_is_not_known_writes_nothing(tmp_path: Path, use: Use) -> None:
    module, file = use(FakeModule()), tmp_path / "report.json"
    one = {"name": "../elsewhere", "quick": False, "done": True, "rounds": {"a": 1}, "starts": []}
    file.write_text(json.dumps({"bench": "figures", "results": [one]}))
    with pytest.raises(ConfigurationError, match=r"--from .*expected some of fake, other; found \.\./elsewhere"):
        run_figures(asked(tmp_path, found=(file,)))
    assert module.measured == [] and [path.name for path in tmp_path.iterdir()] == ["report.json"]


START = {"date": "2026-11-26", "load_1_minute": 1, "commit": "abc", "machine": {"cores": 2, "processor": "one"}}
RESULT = {"name": "fake", "quick": False, "done": True, "rounds": {}, "starts": [START]}


@pytest.mark.parametrize(
    "content",
    [
        "nothing", "[]", '{"results": [{"name": "fake"}], "bench": "figures"}', '{"bench": 1}', "\xff",
        *(
            json.dumps({"bench": "figures", "results": [RESULT | wrong]})
            for wrong in ({"name": ["fake"]}, {"rounds": 3}, {"starts": [3]}, {"starts": [START | {"machine": {}}]})
        ),
    ],
)  # fmt: skip
def test_a_report_of_something_else_is_refused_and_writes_nothing(tmp_path: Path, use: Use, content: str) -> None:
    use(FakeModule())
    file = tmp_path / "report.json"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"--from .*expected what `bench figures --json` prints"):
        run_figures(asked(tmp_path, names=(), found=(file,)))
    assert not (tmp_path / "figures").exists()


def test_a_name_that_is_given_twice_is_one_figure(tmp_path: Path, use: Use) -> None:
    module = use(FakeModule())
    assert len(run_figures(asked(tmp_path, names=("fake", "fake"), output=tmp_path / "p.svg"))["results"]) == 1
    assert len(module.measured) == 6


def test_a_high_load_is_told_and_measured_under(tmp_path: Path, use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    use(FakeModule())
    monkeypatch.setattr(figures, "load_1_minute", lambda: LOAD_MOST + 1)
    said: list[str] = []
    (result,) = run_figures(asked(tmp_path), said.append)["results"]
    assert "its times mean little" in said[0] and "its times mean little" in result["sentences"][-1]


def test_every_figure_has_its_module() -> None:
    for name, part in parts.PARTS.items():
        module = part.load()
        assert callable(module.measure) and callable(module.figure_of), name
        assert part.title and part.minutes > 0


def test_a_name_is_the_paper_and_what_its_module_repeats() -> None:
    for name, part in parts.PARTS.items():
        paper, _, place = name.partition("-")
        folder, _, module = part.module.partition(".")
        assert folder == paper and paper in ("adam", "distbelief")
        number = place.replace("-", "_").replace(".", "_")
        assert module in (number, f"figure_{number}", f"section_{number}")
