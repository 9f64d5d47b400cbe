"""A task's range becomes batches; its report is made when the last comes back."""

from __future__ import annotations

import numpy as np

from adamctl.roles.worker.core.batches import Reports, TaskLedger, cut, damaged_step, fill
from adamctl.roles.worker.core.slots import Slot, SlotCore
from adamctl.wire.messages import EvaluateTask, TaskReport, TrainTask

TRAIN = TrainTask(7, 0, 100, 170, 0.5, 0.6)


def test_a_range_is_cut_into_batches_without_gap_or_overlap() -> None:
    assert [(c.start, c.stop) for c in cut(TRAIN, 32)] == [(0, 32), (32, 64), (64, 70)]


def test_progress_rises_from_the_start_of_the_range_to_its_stop() -> None:
    progress = [c.progress for c in cut(TRAIN, 35)]
    assert progress[0] == 0.5 and abs(progress[1] - 0.55) < 1e-12


def test_an_empty_range_is_reported_at_once() -> None:
    task = EvaluateTask(3, 1, "test", 5, 5)
    report = TaskLedger().begin(task, len(cut(task, 8)))
    assert report is not None and (report.id, report.examples) == (3, 0)


def test_a_report_sums_its_batches_and_comes_with_the_last() -> None:
    ledger = TaskLedger()
    assert ledger.begin(TRAIN, 2) is None
    assert ledger.training == 1
    assert ledger.add(TRAIN, 32, 3.0, 30, 0.1, 0.01) is None
    report = ledger.add(TRAIN, 38, 1.5, 37, 0.2, 0.02)
    assert report is not None
    assert (report.examples, report.loss_sum, report.correct, report.steps) == (70, 4.5, 67, 2)
    assert len(ledger) == 0 and ledger.training == 0


def test_shares_of_a_batch_are_reported_as_steps_of_whole_ones() -> None:
    ledger, pieces = TaskLedger(shares=2), cut(TRAIN, 16)
    assert len(pieces) == 5
    ledger.begin(TRAIN, len(pieces))
    reports = [ledger.add(TRAIN, piece.stop - piece.start, 1.0, 1, 0.1, 0.0) for piece in pieces]
    assert reports[-1] is not None and (reports[-1].examples, reports[-1].steps) == (70, 3)


def test_damaged_examples_are_in_the_report() -> None:
    ledger = TaskLedger()
    ledger.begin(TRAIN, 1, skipped=3)
    report = ledger.add(TRAIN, 67, 3.0, 30, 0.1, 0.01)
    assert report is not None and (report.examples, report.skipped) == (67, 3)
    report = TaskLedger().begin(TRAIN, 0, skipped=70)
    assert report is not None and (report.examples, report.steps, report.skipped) == (0, 0, 70)


def test_batches_are_filled_with_what_is_to_be_kept_and_none_is_empty() -> None:
    images = np.arange(70, dtype=np.float32)[:, None]
    labels = np.where(np.arange(70) < 33, -1, 1).astype(np.int32)
    cuts = cut(TRAIN, 32)
    whole = fill(cuts, images, labels, None)
    assert [len(of_batch) for _, _, of_batch in whole] == [32, 32, 6] and np.shares_memory(whole[0][1], images)
    assert np.shares_memory(fill(cuts, images, labels, np.ones(70, np.bool_))[0][1], images)
    filled = fill(cuts, images, labels, labels > 0)
    assert [(one.start, its_images[0, 0], len(of_batch)) for one, its_images, of_batch in filled] == [
        (32, 33, 31),
        (64, 64, 6),
    ]
    assert "batch of pass 1, from example 100 on" in str(damaged_step(TRAIN))


def test_a_report_of_training_waits_for_the_answers_to_all_that_was_begun_before_it() -> None:
    slots = SlotCore(2, 4, n_push=2, n_fetch=100, keeps=False)

    def step(thread: int) -> Slot | None:
        assert slots.begin_step(thread) is not None
        return slots.end_step(thread, 8, 0.1, 0.0).push

    reports = Reports(slots)
    assert step(0) is None and step(1) is None
    reports.add(TRAIN, report := TaskReport(TRAIN.id, 16, 1.0, 0))
    first, second = step(0), step(1)
    assert first is not None and second is not None and not reports.due
    slots.acknowledged(second)
    assert step(1) is None and not reports.due, "the other thread's is on its way"
    slots.acknowledged(first)
    assert step(0) is None and reports.due, "what came later is of other ranges"
    assert reports.take() == (report,) and not reports.due and reports.take() == ()


def test_other_reports_wait_for_nothing() -> None:
    slots = SlotCore(1, 4, n_push=2, n_fetch=100, keeps=False)
    slots.begin_step(0)
    slots.end_step(0, 8, 0.1, 0.0)
    report, evaluation = TaskReport(7, 8, 1.0, 0), EvaluateTask(3, 1, "test", 0, 5)
    for reports, task in ((Reports(None), TRAIN), (Reports(slots), evaluation)):
        reports.add(task, report)
        assert reports.due and reports.take() == (report,)
