"""What is shown of a run, as texts."""

import io
import os
import select
import threading
from typing import get_args

import msgspec
import pytest
from msgspec import structs
from rich.console import Console

from adamctl.live.display import render
from adamctl.live.plain import PlainReporter
from adamctl.live.reading import ProcessReading
from adamctl.live.reporter import choose_reporter
from adamctl.live.units import count, duration, share, size
from adamctl.live.view import closing_lines, evaluation_line, fold, progress_line, view_of
from adamctl.roles.coordinator.core.progress import EvaluationResult, RoleRow, RunProgress, State

EVALUATION = EvaluationResult(passes=0.25, progress=0.025, train_seconds=12.0, split="test", top1=0.9712, loss=0.1)
PROGRESS = RunProgress(
    state="training",
    job="mnist",
    passes_total=10,
    pass_number=2,
    pass_share=0.5,
    progress=0.25,
    images_per_s=12_345.6,
    connections_per_s=9.3e9,
    updates_per_s=1.2e9,
    loss=0.12345,
    evaluations=(EVALUATION,),
    top1=0.9712,
    best_top1=0.98,
    staleness_p50=1,
    staleness_p99=7,
    gradient_age_p50=2,
    gradient_age_p99=9,
    waiting_share=0.013,
    train_seconds=75.0,
    eta_seconds=3725.0,
    roles=(RoleRow(role="worker", node="worker-1", state="training", detail="pass 2"),),
    messages=("a", "b", "c", "d"),
)


WAIT_S = 60.0
EVIL = "\x1b[2J\r\n[bold red]all is well[/none]"


def test_what_others_say_is_shown_as_text() -> None:
    evaluation = msgspec.structs.replace(EVALUATION, split=EVIL)
    row = RoleRow(role=EVIL, node=EVIL, state=EVIL, detail=EVIL)
    progress = msgspec.structs.replace(
        PROGRESS, job=EVIL, state=EVIL, failure=EVIL, messages=(EVIL,), roles=(row,), evaluations=(evaluation,)
    )
    console = Console(file=io.StringIO(), width=400, force_terminal=True, color_system=None, markup=True)
    console.print(render(view_of(progress, {EVIL: ProcessReading(1.0, 1, EVIL)}), 400, 40))
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    lines: list[str] = []
    reporter = PlainReporter(lines.append, lambda: 0.0)
    reporter.show(progress, {})
    plain = [*lines, *closing_lines(progress, EVIL, [EVIL])]
    for text in (drawn, *plain):
        assert "\x1b[2J" not in text and "\r" not in text
        assert "\\x1b[2J" in text or EVIL not in text
    assert drawn.count("[bold red]all is well[/none]") >= 6
    assert all("\n" not in line for line in plain)
    assert len(lines) == 3


def test_every_figure_of_the_interface_is_there() -> None:
    facts = dict(view_of(PROGRESS, {}).facts)
    assert facts == {
        "pass": "2.50 of 10",
        "loss": "0.1235",
        "test top-1": "97.12%",
        "best top-1": "98.00%",
        "images/s": "12.3 k",
        "connections/s": "9.30 G",
        "updates/s": "1.20 G",
        "gradient age p50/p99": "2/9",
        "staleness p50/p99": "1/7",
        "waited for data": "1.30%",
        "examples": "0",
        "trained": "1 min 15 s",
        "time left": "1 h 02 min",
    }


def test_before_anything_is_known() -> None:
    facts = dict(view_of(RunProgress(state="starting", job="x", passes_total=3), {}).facts)
    assert facts["loss"] == facts["test top-1"] == facts["staleness p50/p99"] == facts["time left"] == "-"
    assert facts["gradient age p50/p99"] == "-"


def test_a_row_per_role_with_what_this_machine_says_of_it() -> None:
    view = view_of(PROGRESS, {"worker-1": ProcessReading(cpu_share=1.98, memory_bytes=300 << 20)})
    line = view.roles[0]
    assert (line.role, line.state, line.cpu, line.memory, line.detail) == (
        "worker",
        "training",
        "198%",
        "300.0 MiB",
        "pass 2",
    )
    assert view_of(PROGRESS, {}).roles[0].cpu == "-"


def test_only_the_newest_messages() -> None:
    assert view_of(PROGRESS, {}).messages == ("b", "c", "d")


def test_plain_lines() -> None:
    assert progress_line(PROGRESS) == (
        "mnist: training, pass 2.50 of 10, loss 0.1235, test top-1 97.12%, 12.3 k images/s, gradient age 2/9, "
        "1 h 02 min left"
    )
    assert evaluation_line("mnist", EVALUATION) == (
        "mnist: test top-1 97.12%, loss 0.1000 (pass 0.25, 12.0 s of training)"
    )


def test_a_plain_line_every_ten_seconds_and_one_per_evaluation() -> None:
    lines: list[str] = []
    now = 0.0
    reporter = PlainReporter(lines.append, lambda: now)
    for second in range(25):
        now = float(second)
        reporter.show(PROGRESS, {})
    assert len([line for line in lines if line.startswith("mnist: training")]) == 3
    assert len([line for line in lines if "of training)" in line]) == 1
    assert len(lines) == 4 + 4  # each message once


def test_without_a_terminal_there_are_no_control_codes() -> None:
    stream = io.StringIO()
    reporter = choose_reporter(stream, plain=False)
    reporter.show(PROGRESS, {})
    reporter.note("a note")
    reporter.close()
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().splitlines()[-1] == "a note"


@pytest.mark.parametrize("state", get_args(State))
def test_a_state_is_the_same_word_on_the_screen_as_for_programs(state: str) -> None:
    progress = RunProgress(state=state, job="x", passes_total=3)
    title = view_of(progress, {}).title
    assert title.removeprefix("x: ").partition(":")[0] == state
    assert progress_line(progress).startswith(f"x: {state},")
    if progress.final:
        assert closing_lines(progress, "folder", [])[0] == f"x: {state}"


def test_a_reporter_whose_reader_has_gone_is_silent() -> None:
    read, write = os.pipe()
    with open(write, "w", buffering=1) as stream:
        reporter = choose_reporter(stream, plain=True)
        os.close(read)
        reporter.note("nobody reads this")
        reporter.show(PROGRESS, {})
        reporter.close()


@pytest.mark.parametrize("plain", [True, False])
def test_a_reader_that_stands_still_holds_nobody_up_and_misses_only_pictures(
    plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-S, a machine that sleeps, a pager: the front goes on hearing its agents."""
    monkeypatch.setenv("TERM", "xterm")
    master, slave = os.openpty()
    notes, shown, read = 100, threading.Event(), b""

    def show() -> None:
        for number in range(notes):
            for _ in range(20):
                reporter.show(PROGRESS, {})
            reporter.note(f"note {number}." + 600 * " -")
        shown.set()

    with open(slave, "w", buffering=1) as stream:
        reporter = choose_reporter(stream, plain=plain)
        try:
            threading.Thread(target=show, daemon=True).start()
            assert shown.wait(WAIT_S), "nobody reads, and the run waits"
            while f"note {notes - 1}.".encode() not in read:
                read += os.read(master, 65536)
            assert all(f"note {number}.".encode() in read for number in range(notes))
            while b"at the end" not in read:
                reporter.show(structs.replace(PROGRESS, messages=("at the end",)), {})
                if select.select([master], [], [], 0.01)[0]:
                    read += os.read(master, 65536)
            closing = threading.Thread(target=reporter.close)
            closing.start()
            while closing.is_alive():
                if select.select([master], [], [], 0.01)[0]:
                    os.read(master, 65536)
        finally:
            os.close(master)


def test_processes_that_only_this_machine_knows_of_are_rows_too_in_the_order_of_roles() -> None:
    others = ("worker-10", "worker-2", "worker-²", "controller")
    readings = {node: ProcessReading(0.0, 0, node.partition("-")[0]) for node in others}
    rows = view_of(PROGRESS, readings).roles
    assert [row.node for row in rows] == ["controller", "worker-²", "worker-1", "worker-2", "worker-10"]
    assert [row.state for row in rows] == ["serving", "starting", "training", "starting", "starting"]


def drawn(width: int, height: int = 40, progress: RunProgress = PROGRESS) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(render(view_of(progress, {"worker-1": ProcessReading(1.5, 3 << 28)}), width, height))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_rich_picture_holds_figures_roles_and_messages() -> None:
    text = drawn(120)
    for expected in ("mnist: training", "12.3 k", "97.12%", "98.00%", "worker-1", "time left", "b", "d"):
        assert expected in text


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_nothing_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    text = drawn(width)
    assert "…" not in text and max(map(len, text.splitlines())) <= width
    for expected in (" 25%", "97.12%", "98.00%", "1 h 02 min", "150%", "768.0 MiB", "pass 2"):
        assert expected in text


EIGHT = tuple(
    RoleRow(role=role, node=f"{role}-{number}", state="serving", detail="12345 examples")
    for role, count in (("ps", 3), ("data", 2), ("worker", 3))
    for number in range(1, count + 1)
)


def test_eight_roles_and_the_news_fit_a_terminal_of_24_lines() -> None:
    progress = structs.replace(PROGRESS, roles=EIGHT, messages=("one", "w" * 100, "three"))
    lines = drawn(80, 24, progress).splitlines()
    assert len(lines) <= 23
    news = next(index for index, line in enumerate(lines) if line.startswith("three"))
    head = next(index for index, line in enumerate(lines) if line.startswith("role"))
    assert news < head
    assert [line for line in lines if "ps-3" in line or "3 x ps" in line]


def test_roles_are_folded_until_they_fit() -> None:
    rows = view_of(structs.replace(PROGRESS, roles=EIGHT), {}).roles
    assert fold(rows, 8) == rows
    few = fold(rows, 4)
    assert [(row.role, row.node) for row in few] == [
        ("ps", "3 x ps"), ("data", "data-1"), ("data", "data-2"), ("worker", "3 x worker"),
    ]  # fmt: skip
    assert len(fold(rows, 1)) == 3
    readings = {"worker-1": ProcessReading(0.5, 1 << 20), "worker-2": ProcessReading(1.0, 1 << 20)}
    states = (*EIGHT[:-1], structs.replace(EIGHT[-1], state="waiting"))
    worker = fold(view_of(structs.replace(PROGRESS, roles=states), readings).roles, 1)[-1]
    assert (worker.state, worker.detail, worker.cpu) == ("mixed", "2 serving, 1 waiting", "150%")


def test_what_is_wrong_with_a_role_is_its_state_and_news() -> None:
    view = view_of(PROGRESS, {"worker-1": ProcessReading(0.0, 0, "worker", "no space left on its disk")})
    assert view.roles[0].state == "degraded"
    assert view.messages[-1] == "worker-1: no space left on its disk"


def test_the_closing_summary() -> None:
    lines = closing_lines(PROGRESS, "runs/mnist/001", ["adamctl eval runs/mnist/001"])
    assert lines[1].split() == ["test", "top-1", "97.12%,", "best", "98.00%"]
    assert lines[-1].split() == ["next", "adamctl", "eval", "runs/mnist/001"]


def test_units() -> None:
    assert [count(v) for v in (0, 999, 1234, 45_600, 2.5e6, 7e12)] == [
        "0",
        "999",
        "1.23 k",
        "45.6 k",
        "2.50 M",
        "7.00 T",
    ]
    assert [size(v) for v in (5, 2048, 3 << 20)] == ["5 B", "2.0 KiB", "3.0 MiB"]
    assert [duration(v) for v in (None, 4.25, 119.6, 7500)] == ["-", "4.2 s", "2 min 00 s", "2 h 05 min"]
    assert share(0.5) == "50.00%"


def test_skipped_examples_are_in_the_closing_lines_and_in_the_view() -> None:
    evaluation = msgspec.structs.replace(EVALUATION, skipped=2)
    progress = msgspec.structs.replace(PROGRESS, examples=1200, skipped=30, evaluations=(evaluation,))
    (line,) = [line for line in closing_lines(progress, "folder", []) if "skipped" in line]
    assert "damaged: 30 of 1,200 training examples, all passes together, 2 of the test split" in line
    assert dict(view_of(progress, {}).facts)["skipped"] == "30"
    assert "damaged and skipped: 2" in evaluation_line("x", evaluation)
    assert not any("skipped" in line for line in closing_lines(PROGRESS, "folder", []))
