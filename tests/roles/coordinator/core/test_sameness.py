"""Workers of a batch algorithm compute alike, or are refused with the reason."""

from __future__ import annotations

from typing import Any, cast

from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.instructions import Admit, Refuse, Say
from adamctl.roles.coordinator.core.run_core import RunCore
from adamctl.roles.coordinator.core.sameness import Sameness, differences
from adamctl.wire.constants import ErrorCode
from tests.roles.coordinator.simulation import plan

ONE = {"kernels": "numba", "BLAS": "openblas 0.3.31 Haswell", "processor": "SSE2 AVX2"}
OTHER = {**ONE, "BLAS": "openblas 0.3.31 SkylakeX", "processor": "SSE2 AVX512F"}


class Run:
    """A run of a batch algorithm that workers join."""

    def __init__(self, former: dict[str, str] | None = None, batch: bool = True, partitions: int = 1) -> None:
        self.core, self.token = RunCore(plan(workers=3, partitions=partitions), 0.0), 0
        self.job: Any = type("Job", (), {"sameness": Sameness(former or {}), "stop_reason": None, "commit": 0})()
        self.said: list[str] = []
        self.core.step(events.Ready(100, 0, None, cast(BatchJob, self.job) if batch else None), 0.0)

    def join(self, node: str, implementation: dict[str, str], incarnation: int = 1) -> str:
        """Returns why a worker is refused, "" if it is not."""
        self.token += 1
        addresses = (f"memory://{node}",)
        found = self.core.step(
            events.WorkerJoins(
                self.token, node, incarnation, 1, "host", addresses, 5.0, implementation=implementation
            ), 0.0,
        )  # fmt: skip
        self.said += [one.text for one in found if isinstance(one, Say) and "otherwise" in one.text]
        refused = [one for one in found if isinstance(one, Refuse) and one.token == self.token]
        assert all(one.code == ErrorCode.IMPLEMENTATION_MISMATCH for one in refused)
        assert (
            refused
            or not self.core.run.batch
            or self.core.run.plan.partitions > 1
            or any(isinstance(x, Admit) for x in found)
        )
        return refused[0].message if refused else ""

    def lose(self, node: str) -> None:
        self.core.step(events.WorkerLost(node, 1, "killed"), 0.0)


def test_a_worker_that_computes_otherwise_is_refused_with_the_reason_and_what_to_do() -> None:
    run = Run()
    assert not run.join("w0", ONE) and not run.join("w1", dict(ONE))
    text = run.join("w2", OTHER)
    assert "worker w2 computes otherwise" in text and "BLAS is openblas 0.3.31 SkylakeX, expected" in text
    assert "its processor has AVX512F and lacks AVX2" in text and "OPENBLAS_CORETYPE" in text
    assert run.join("w2", OTHER) == text and run.said == [text], "it is said once, however often it asks"
    assert list(run.core.run.workers) == [("w0", 1), ("w1", 1)]


def test_when_nobody_is_left_the_next_one_decides_and_it_is_said() -> None:
    run = Run()
    run.join("w0", ONE)
    run.lose("w0")
    assert not run.join("w1", OTHER)
    assert len(run.said) == 1 and "worker w1" in run.said[0] and "bits may differ from here on" in run.said[0]
    assert run.join("w0", ONE, 2) and run.job.sameness.implementation == OTHER


def test_a_run_is_resumed_on_other_machines_and_that_is_said() -> None:
    same, other = Run(former=ONE), Run(former=ONE)
    assert not same.join("w0", ONE) and not same.said
    assert not other.join("w0", OTHER) and "bits may differ" in other.said[0]
    assert not other.join("w1", OTHER) and len(other.said) == 1


def test_members_of_a_replica_compute_alike_too() -> None:
    run = Run(partitions=2)
    assert not run.join("w0", ONE), "it waits in the lobby"
    assert run.join("w1", OTHER) and not run.join("w1", ONE, 2)
    assert run.join("w2", OTHER), "a group has been formed"


def test_a_worker_that_asks_again_decides_for_itself() -> None:
    run = Run(partitions=2)
    run.join("w0", ONE)
    assert not run.join("w0", OTHER, 2), "nobody else is there"


def test_other_rules_take_any_worker() -> None:
    run = Run(batch=False)
    assert not run.join("w0", ONE) and not run.join("w1", OTHER) and not run.said


def test_what_differs() -> None:
    assert differences({}, ONE) == differences(ONE, dict(ONE)) == ""
    assert differences(ONE, {}).startswith("kernels is not told, expected numba")
    assert differences({"BLAS": "a"}, {"BLAS": "a", "numba": "1"}) == "numba is 1, expected none"
    assert differences({"processor": "A B"}, {"processor": "A"}) == "its processor lacks B"
