"""The rounds of a few iterations on a real server process are timed, and nothing else."""

from __future__ import annotations

from itertools import count

import pytest

from adamctl.bench.sandblaster import rounds
from adamctl.bench.sandblaster.rounds import measure_server_rounds
from adamctl.errors import RunFailedError
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.lbfgs import LBFGSSettings, lbfgs
from adamctl.roles.coordinator.batch_service import BatchService
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.bundles import Bundle
from adamctl.wire.messages import BundleName, BundleReport, BundleTask, NextBundlesReply, NextBundlesRequest


def test_a_server_process_is_timed() -> None:
    found = measure_server_rounds(300, iterations=4, history=2)
    assert found.iterations == 4
    assert found.parameters == 310, "the nearest that such a network can have"
    assert 0 < found.p10_s <= found.median_s <= found.p90_s


async def test_time_counts_from_the_last_report_to_the_next_bundle_across_one_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The service commits before every second reply; what lies between without a commit is a further trial."""

    class Service:
        asked = 0

        async def next_bundles(self, message: object) -> NextBundlesReply:
            self.asked += 1
            if self.asked % 2:
                evaluator.committed()
            return NextBundlesReply((BundleTask(BundleName(self.asked, 0, 0), 0, 1, 1.0, "t"),))

    async def evaluate(task: object) -> BundleReport:
        next(ticks)  # takes a second
        return BundleReport(task.name, 0)  # type: ignore[attr-defined]

    ticks = count()
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: next(ticks))
    evaluator = rounds._Evaluator(None, 4, 3)  # type: ignore[arg-type]
    monkeypatch.setattr(evaluator, "_evaluate", evaluate)
    assert await evaluator.work(Service())  # type: ignore[arg-type]
    assert evaluator.seconds == [1, 1, 1]


async def test_a_service_that_has_failed_ends_the_measurement_with_its_error() -> None:
    """Each of its replies is there at once, so that whoever goes on asking lets no timeout run."""

    class Vectors:
        async def evaluate(self, *_: object, **__: object) -> None:
            raise RunFailedError("c-1 commands this job")

        round = commit = evaluate

    class Asked(BatchService):
        count = 0

        async def next_bundles(self, message: NextBundlesRequest) -> NextBundlesReply:
            self.count += 1
            assert self.count < 100, "it goes on asking"
            return await super().next_bundles(message)

    def start(progress: Progress | None) -> Execution:
        return Execution(lbfgs, LBFGSSettings(), committed=progress)

    job = BatchJob("lbfgs", start, (Bundle(0, 0, 1),), 1)
    service = Asked(job, Vectors())  # type: ignore[arg-type]
    with pytest.raises(RunFailedError, match="the vectors of the run: c-1 commands this job"):
        await rounds._work_beside(service, rounds._Evaluator(None, 4, 3))  # type: ignore[arg-type]


def test_the_quadratic_has_its_least_value_where_its_gradient_is_zero() -> None:
    evaluator = rounds._Evaluator(None, 4, 3)  # type: ignore[arg-type]
    loss, gradient = evaluator._quadratic(rounds.np.array([1, 1, 1, 3], rounds.np.float32))
    assert (loss, gradient.tolist()) == (2.0, [0.0, 0.0, 0.0, 2.0])
