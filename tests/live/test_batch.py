"""What is shown of the run of a batch algorithm, as texts."""

import io

import pytest
from msgspec import structs
from rich.console import Console

from adamctl.live.display import render
from adamctl.live.reading import ProcessReading
from adamctl.live.units import figure
from adamctl.live.view import closing_lines, progress_line, view_of
from adamctl.roles.coordinator.core.progress import BatchProgress, RunProgress
from tests.live.test_view import EIGHT, EVIL, PROGRESS

BATCH = BatchProgress(
    algorithm="lbfgs",
    iterations=40,
    evaluations=44,
    loss=0.00123456,
    gradient_max=9.87e-5,
    step=0.25,
    bundles=12,
    bundles_total=32,
    pairs_skipped=1,
    restarts=2,
    backups=3,
    backups_won=1,
    command_seconds=0.5,
    evaluation_seconds=9.5,
)
RUNNING = structs.replace(PROGRESS, job="digits", passes_total=100, batch=BATCH)
BEGINNING = structs.replace(
    RunProgress(state="starting", job="digits", passes_total=100), batch=BatchProgress(algorithm="lbfgs")
)


def ended(**changes: object) -> RunProgress:
    fields = {"bundles": 0, "stop_reason": "gradient"} | changes
    return structs.replace(RUNNING, state="ended", batch=structs.replace(BATCH, **fields))


def test_every_figure_of_the_interface_is_there_and_none_that_means_nothing() -> None:
    assert dict(view_of(RUNNING, {}).facts) == {
        "algorithm": "lbfgs",
        "iteration": "40",
        "evaluations": "44 of 100",
        "per iteration": "1.07",
        "bundles": "12 of 32",
        "loss": "0.001235",
        "max|g|": "9.87e-05",
        "step": "0.25",
        "backups": "3, 1 won",
        "restarts": "2",
        "in commands": "5.00%",
        "test top-1": "97.12%",
        "best top-1": "98.00%",
        "images/s": "12.3 k",
        "connections/s": "9.30 G",
        "waited for data": "1.30%",
        "trained": "1 min 15 s",
        "left at most": "1 h 02 min",
    }


def test_before_anything_is_known() -> None:
    facts = dict(view_of(BEGINNING, {}).facts)
    assert {label for label, value in facts.items() if value == "-"} == {
        "iteration", "per iteration", "bundles", "loss", "max|g|", "step", "in commands", "test top-1", "best top-1",
        "left at most",
    }  # fmt: skip
    assert (facts["evaluations"], facts["backups"], facts["restarts"]) == ("0 of 100", "0", "0")
    assert progress_line(BEGINNING) == "digits: starting, 0 of 100 evaluations, 0 images/s"


def test_a_program_of_another_package_may_say_nothing_of_itself() -> None:
    silent = structs.replace(BATCH, algorithm="mine", iterations=None, loss=None, gradient_max=None, step=None)
    facts = dict(view_of(structs.replace(RUNNING, batch=silent), {}).facts)
    assert facts["iteration"] == facts["loss"] == facts["per iteration"] == "-"
    lines = closing_lines(ended(algorithm="mine", iterations=None, loss=None, stop_reason="bored"), "folder", [])
    assert [line.split() for line in lines[2:4]] == [["mine", "44", "evaluations,", "2", "restarts"],
                                                     ["stopped", "bored"]]  # fmt: skip


def test_the_plain_line() -> None:
    assert progress_line(RUNNING) == (
        "digits: training, iteration 40, 44 of 100 evaluations, 12 of 32 bundles, loss 0.001235, max|g| 9.87e-05, "
        "test top-1 97.12%, 12.3 k images/s, at most 1 h 02 min left"
    )
    between = structs.replace(RUNNING, batch=structs.replace(BATCH, bundles=32), eta_seconds=None, top1=None)
    assert progress_line(between) == (
        "digits: training, iteration 40, 44 of 100 evaluations, loss 0.001235, max|g| 9.87e-05, 12.3 k images/s"
    )


def test_the_closing_summary() -> None:
    assert closing_lines(ended(), "runs/digits/001", ["adamctl eval runs/digits/001"]) == [
        "digits: ended",
        "  test top-1     97.12%, best 98.00%",
        "  lbfgs          40 iterations, 44 evaluations, 1.07 an iteration, 2 restarts",
        "  loss           0.001235, max|g| 9.87e-05",
        "  stopped        gradient: max|g| is at most optimizer.gradient_tolerance",
        "  backups        3, 1 won",
        "  in commands    5.00% of the time",
        "  trained        1 min 15 s, 12.3 k images/s, 9.30 G connections/s",
        "  run folder     runs/digits/001",
        "  next           adamctl eval runs/digits/001",
    ]


def test_one_of_a_kind_is_in_the_singular() -> None:
    lines = closing_lines(ended(iterations=1, evaluations=1, restarts=1), "folder", [])
    assert "  lbfgs          1 iteration, 1 evaluation, 0.00 an iteration, 1 restart" in lines


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("gradient", "gradient: max|g| is at most optimizer.gradient_tolerance"),
        ("change", "change: the loss changed by at most optimizer.change_tolerance"),
        ("precision", "precision: float32 tells no better point along any direction"),
        ("budget", "budget: the evaluations of train.passes are used up"),
        ("tired", "tired"),
    ],
)
def test_why_it_stopped(reason: str, shown: str) -> None:
    lines = closing_lines(ended(stop_reason=reason, restarts=0, backups=0), "folder", [])
    assert f"  stopped        {shown}" in lines
    assert "  lbfgs          40 iterations, 44 evaluations, 1.07 an iteration" in lines
    assert not any("backups" in line for line in lines)


def test_what_others_say_is_shown_as_text() -> None:
    progress = structs.replace(RUNNING, batch=structs.replace(BATCH, algorithm=EVIL, stop_reason=EVIL))
    for text in (drawn(120, progress=progress), *closing_lines(progress, "folder", [])):
        assert "\x1b" not in text and "\r" not in text


def drawn(width: int, height: int = 40, progress: RunProgress = RUNNING) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(view_of(progress, {"worker-1": ProcessReading(1.5, 3 << 28)}), width, height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    text = drawn(width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for expected in (" 25%", "12 of 32", "9.87e-05", "3, 1 won", "5.00%", "1 h 02 min", "768.0 MiB"):
        assert expected in text


def test_eight_roles_and_the_news_fit_a_terminal_of_24_lines() -> None:
    lines = drawn(80, 24, structs.replace(RUNNING, roles=EIGHT, messages=("one", "w" * 100, "three"))).splitlines()
    assert len(lines) <= 23
    assert [line for line in lines if "3 x ps" in line]


def test_figures_of_four_digits() -> None:
    assert [figure(value) for value in (None, 0.0, 2.302585, 0.0123449, 1.23e-9, 12345.6)] == [
        "-", "0", "2.303", "0.01234", "1.23e-09", "1.235e+04",
    ]  # fmt: skip
