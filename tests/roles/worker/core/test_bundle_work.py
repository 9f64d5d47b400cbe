"""A worker's bundles: pulled for once an evaluation, pushed only if still wanted, reported exactly once."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import pytest

from adamctl.roles.worker.core.bundle_work import BundleWork, Held, Pull, State, portions_of, weight_of
from adamctl.roles.worker.core.example_memory import ExampleMemory, Span
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BundleName, BundleReport, BundleTask, NextBundlesReply

EXAMPLES, PER_BUNDLE = 23, 4


def task(evaluation: int, bundle: int, attempt: int = 0) -> BundleTask:
    start, stop = PER_BUNDLE * bundle, min(PER_BUNDLE * (bundle + 1), EXAMPLES)
    return BundleTask(BundleName(evaluation, attempt, bundle), start, stop, (stop - start) / EXAMPLES, "t")


def make(threads: int = 1, bytes_max: int = 1000) -> BundleWork:
    return BundleWork(threads, ExampleMemory(1, bytes_max))


def give(work: BundleWork, *tasks: BundleTask) -> None:
    """Gives bundles; their examples are there at once."""
    work.take(NextBundlesReply(tasks))
    for span in work.take_reads():
        work.arrived(span)


def compute(work: BundleWork) -> list[Held]:
    """Pulls if that is due, computes what can be; returns what is to be pushed."""
    if work.to_pull() is not None:
        work.pulled()
    return [held for held in work.to_compute() if work.computed(held, 1.0, 0.0, 0.0)]


def codes(work: BundleWork) -> list[tuple[int, int]]:
    return [(report.name.bundle, report.code) for report in work.take_reports()[0]]


@pytest.mark.parametrize("batch", [1, 2, 3, 4, 5])
def test_a_portion_counts_by_its_examples(batch: int) -> None:
    """What is pushed is the gradient of the mean, for any length of the last portion: checked with gradients 0 to n."""
    one = BundleTask(BundleName(1, 0, 0), 100, 111, 0.25, "t")
    gradients = [Fraction(number) for number in range(11)]
    portions = portions_of(one, batch)
    assert [example for start, stop, _ in portions for example in range(start, stop)] == list(range(11))
    assert {stop - start for start, stop, _ in portions[:-1]} <= {batch}
    total = sum(Fraction(share) * sum(gradients[start:stop]) / (stop - start) for start, stop, share in portions)
    assert float(total) * weight_of(one, batch) == pytest.approx(0.25 * sum(range(11)) / 11)


def test_parameters_are_pulled_once_an_evaluation() -> None:
    work = make()
    assert work.to_pull() is None, "nothing is known"
    give(work, task(1, 0))
    assert work.to_compute() == []
    assert work.to_pull() == Pull(1, "t")
    assert work.to_pull() is None, "it is being pulled"
    assert work.to_compute() == []
    work.pulled()
    [held] = work.to_compute()
    give(work, task(1, 1))
    assert work.to_pull() is None
    assert work.computed(held, 1.0, 0.0, 0.0)
    give(work, task(2, 0))
    assert work.to_pull() == Pull(2, "t"), "a push need not have ended"


def test_parameters_are_not_replaced_while_a_thread_computes() -> None:
    work = make(threads=2)
    give(work, task(1, 0), task(1, 1))
    work.to_pull()
    work.pulled()
    first, second = work.to_compute()
    give(work, task(2, 0))
    assert first.given_up and second.given_up
    assert work.to_pull() is None and work.to_compute() == []
    assert not work.computed(first, 1.0, 0.0, 0.0)
    assert work.to_pull() is None
    assert not work.computed(second, 1.0, 0.0, 0.0)
    assert work.to_pull() == Pull(2, "t")
    assert codes(work) == [(0, ErrorCode.ABANDONED), (1, ErrorCode.ABANDONED)]


def test_a_pull_that_is_too_late_does_not_count() -> None:
    work = make()
    give(work, task(1, 0))
    work.to_pull()
    give(work, task(2, 0))
    work.pulled()
    assert work.to_compute() == []
    assert work.to_pull() == Pull(2, "t")


def test_another_attempt_is_at_the_same_parameters() -> None:
    work = make()
    give(work, task(1, 0))
    compute(work)
    give(work, task(1, 0, attempt=1))
    assert work.to_pull() is None
    assert [held.task.name.attempt for held in work.to_compute()] == [1]


def test_an_answer_that_comes_late_brings_nothing_back() -> None:
    work = make()
    give(work, task(2, 0))
    give(work, task(1, 1))
    assert codes(work) == [(1, ErrorCode.ABANDONED)]
    assert [held.task.name.evaluation for held in compute(work)] == [2]


def test_a_cancelled_bundle_is_not_pushed_and_reported_once() -> None:
    work = make(threads=2)
    give(work, *(task(1, bundle) for bundle in range(4)))
    work.to_pull()
    work.pulled()
    computing = work.to_compute()
    assert work.computed(computing[0], 5.0, 0.0, 0.0)
    cancelled = tuple(task(1, bundle).name for bundle in range(4))
    work.take(NextBundlesReply(cancelled=cancelled))
    assert [work.computed(held, 1.0, 0.0, 0.0) for held in computing[1:]] == [False] * 3
    work.pushed(computing[0], {})
    work.take(NextBundlesReply(cancelled=cancelled))
    reports = {report.name.bundle: report for report in work.take_reports()[0]}
    assert [reports[bundle].code for bundle in range(4)] == [ErrorCode.OK, *[ErrorCode.ABANDONED] * 3]
    assert (reports[0].loss_sum, reports[0].examples) == (5.0, 4)
    assert (reports[1].loss_sum, reports[1].examples) == (0.0, 0)
    assert not work.has_news and not work.busy


def test_a_bundle_that_is_had_twice_is_ended_twice_in_any_order() -> None:
    """Cancelled while it is pushed, and given again: two of the same name, which may say the same."""
    work = make()
    give(work, task(1, 0))
    [first] = compute(work)
    work.take(NextBundlesReply((), (task(1, 0).name,)))
    give(work, task(1, 0))
    [second] = compute(work)
    work.take(NextBundlesReply((), (task(1, 0).name,)))
    for held in (second, first):
        work.pushed(held, {})
    assert codes(work) == [(0, ErrorCode.OK)] * 2 and not work.busy


def test_a_bundle_that_waits_is_given_up_at_once() -> None:
    work = make()
    work.take(NextBundlesReply((task(1, 0), task(1, 1))))
    work.take(NextBundlesReply(cancelled=(task(1, 0).name,)))
    assert codes(work) == [(0, ErrorCode.ABANDONED)]
    assert work.wanted == 1


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        ({}, ErrorCode.OK),
        ({0: ErrorCode.NOT_FINITE, 1: ErrorCode.OUT_OF_RANGE}, ErrorCode.NOT_FINITE),
        ({1: ErrorCode.OUT_OF_RANGE}, ErrorCode.OUT_OF_RANGE),
        ({1: ErrorCode.OUT_OF_RANGE, 4: ErrorCode.NO_VECTOR}, ErrorCode.ABANDONED),
    ],
)
def test_what_servers_answer_is_what_is_reported(refused: dict[int, int], code: ErrorCode) -> None:
    work = make()
    give(work, task(1, 0))
    [held] = compute(work)
    work.pushed(held, refused)
    reports, lost = work.take_reports()
    assert [report.code for report in reports] == [code]
    assert lost == ((4,) if code == ErrorCode.ABANDONED else ())


def test_a_bucket_that_has_lost_a_sum_makes_the_rest_vain() -> None:
    work = make(threads=2)
    give(work, *(task(1, bundle) for bundle in range(4)))
    first, *others = compute(work)
    give(work, task(1, 4))
    work.pushed(first, {3: ErrorCode.NO_VECTOR, 1: ErrorCode.NO_VECTOR})
    reports, lost = work.take_reports()
    assert [report.name.bundle for report in reports] == [0, 4] and lost == (1, 3)
    for held in others:
        work.pushed(held, {3: ErrorCode.NO_VECTOR})
    give(work, task(1, 0, attempt=1))
    assert work.take_reports()[1] == (), "what an earlier attempt lacked is known by now"
    assert len(compute(work)) == 1


def test_a_refused_pull_gives_up_the_evaluation() -> None:
    work = make()
    give(work, task(1, 0), task(1, 1))
    work.to_pull()
    work.pull_refused((2,))
    reports, lost = work.take_reports()
    assert [(report.name.bundle, report.code) for report in reports] == [
        (0, ErrorCode.ABANDONED),
        (1, ErrorCode.ABANDONED),
    ]
    assert lost == (2,)
    give(work, task(1, 0, attempt=1))
    assert work.to_pull() == Pull(1, "t")


def test_a_pull_that_is_refused_since_all_went_on_says_nothing() -> None:
    work = make()
    give(work, task(1, 0))
    work.to_pull()
    give(work, task(2, 0))
    work.take_reports()
    work.pull_refused((2,))
    assert not work.has_news
    assert work.to_pull() == Pull(2, "t")


def test_no_more_is_taken_than_threads_can_have() -> None:
    work = make(threads=2)
    assert work.wanted == 4
    give(work, *(task(1, bundle) for bundle in range(4)))
    assert work.wanted == 0
    compute(work)
    assert work.wanted == 4, "pushes take no thread"
    work.take(NextBundlesReply(drain=True))
    assert work.wanted == 0
    work.take(NextBundlesReply())
    assert work.wanted == 4


def test_who_leaves_gives_up_all_that_is_not_being_pushed() -> None:
    work = make(threads=2)
    give(work, *(task(1, bundle) for bundle in range(3)))
    work.to_pull()
    work.pulled()
    first, second, _ = work.to_compute()
    work.computed(first, 1.0, 0.0, 0.0)
    give(work, task(1, 3))
    work.abandon()
    give(work, task(1, 4))
    assert work.wanted == 0 and work.to_compute() == []
    assert not work.computed(second, 1.0, 0.0, 0.0)
    work.pushed(first, {})
    assert codes(work) == [
        (3, ErrorCode.ABANDONED),
        (4, ErrorCode.ABANDONED),
        (1, ErrorCode.ABANDONED),
        (0, ErrorCode.OK),
    ]


def test_examples_are_read_before_an_evaluation_begins() -> None:
    work = make()
    work.take(NextBundlesReply(ahead=((0, 4), (4, 8))))
    assert work.take_reads() == [Span(0, 4), Span(4, 8)]
    work.arrived(Span(4, 8))
    work.take(NextBundlesReply((task(1, 0), task(1, 1))))
    assert work.take_reads() == []
    work.to_pull()
    work.pulled()
    assert [held.task.name.bundle for held in work.to_compute()] == [1], "the other one is still being read"


class Everything:
    """A worker and what is around it, where anything may happen at any time."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.work = make(threads=self.chance.randint(1, 3), bytes_max=self.chance.choice([0, 12, 1000]))
        self.stage = (1, 0)
        self.given: list[BundleName] = []
        self.out: set[BundleName] = set()
        self.reports: list[BundleReport] = []
        self.reading: list[Span] = []
        self.pulling: Pull | None = None
        self.computing: list[tuple[Held, int, bool]] = []
        self.pushing: list[Held] = []
        self.pulls: list[int] = []
        self.loaded = 0
        self.sums: Counter[tuple[int, int]] = Counter()
        self.done: set[int] = set()
        self.refusals = 0

    def step(self, calm: bool) -> None:
        chance = self.chance
        what = chance.randrange(12)
        if what < 4:
            self.give()
        elif what == 4 and self.out and not calm:
            self.work.take(NextBundlesReply(cancelled=tuple(chance.sample(sorted(self.out, key=str), 1))))
        elif what == 5 and not calm and chance.random() < 0.2:
            self.stage = chance.choice([(self.stage[0] + 1, 0), (self.stage[0], self.stage[1] + 1)])
            self.done = set()
        elif what == 6 and self.reading:
            self.work.arrived(self.reading.pop(chance.randrange(len(self.reading))))
        elif what == 7 and self.pulling is not None:
            self.end_pull(chance.random() < 0.2 and not calm)
        elif what in (8, 9) and self.computing:
            self.end_computing()
        elif what == 10 and self.pushing:
            self.end_push(chance.random() < 0.2 and not calm)
        self.follow()

    def give(self) -> None:
        left = [number for number in range(6) if number not in self.done and not self.holds(number)]
        tasks = tuple(task(self.stage[0], number, self.stage[1]) for number in left[: self.work.wanted])
        self.given += [one.name for one in tasks]
        self.out.update(one.name for one in tasks)
        self.work.take(NextBundlesReply(tasks, ahead=((0, 4),)))

    def holds(self, bundle: int) -> bool:
        return any((name.evaluation, name.attempt, name.bundle) == (*self.stage, bundle) for name in self.out)

    def end_pull(self, refused: bool) -> None:
        assert self.pulling is not None
        pull, self.pulling = self.pulling, None
        if refused:
            self.refusals += 1
            self.work.pull_refused((1,))
        else:
            self.loaded = pull.evaluation
            self.work.pulled()

    def end_computing(self) -> None:
        held, loaded, _ = self.computing.pop(self.chance.randrange(len(self.computing)))
        assert loaded == self.loaded == held.task.name.evaluation, "parameters were replaced meanwhile"
        wanted = not held.given_up
        assert self.work.computed(held, 1.0, 0.0, 0.0) == wanted
        if wanted:
            self.pushing.append(held)

    def end_push(self, refused: bool) -> None:
        held = self.pushing.pop(self.chance.randrange(len(self.pushing)))
        self.work.pushed(held, {0: ErrorCode.NO_VECTOR} if refused else {})

    def follow(self) -> None:
        """Begins what the worker says, and takes its reports."""
        self.reading += self.work.take_reads()
        pull = self.work.to_pull()
        if pull is not None:
            assert self.pulling is None and not self.computing
            self.pulling, self.loaded = pull, 0
            self.pulls.append(pull.evaluation)
        for held in self.work.to_compute():
            assert self.pulling is None and held.task.name.evaluation == self.loaded
            assert held.span not in self.reading
            self.computing.append((held, self.loaded, True))
        reports, lost = self.work.take_reports()
        assert not lost or any(report.code == ErrorCode.ABANDONED for report in reports)
        for report in reports:
            assert report.name in self.out, "reported twice"
            self.out.remove(report.name)
            if report.code == ErrorCode.OK and (report.name.evaluation, report.name.attempt) == self.stage:
                self.done.add(report.name.bundle)
        self.reports += reports
        self.work.memory.take_dropped()


def test_every_bundle_is_reported_once_whatever_happens() -> None:
    base = random.randrange(1 << 30)
    print("seed", base)
    for seed in range(base, base + 100):
        world = Everything(seed)
        for _ in range(300):
            world.step(calm=False)
        for _ in range(1500):
            world.step(calm=True)
            if len(world.done) == 6 and not world.out and not world.reading and world.pulling is None:
                break
        assert len(world.done) == 6 and not world.out and not world.work.busy, f"seed {seed}: it hangs"
        assert Counter(report.name for report in world.reports) == Counter(world.given), f"seed {seed}"
        assert all(held.state is State.REPORTED for held, _, _ in world.computing)
        most = len(set(world.pulls)) + world.refusals
        assert len(world.pulls) <= most, "pulled again without need"
        kept = world.work.memory.used_bytes
        assert kept <= max(world.work.memory.bytes_max, PER_BUNDLE), f"seed {seed}"
