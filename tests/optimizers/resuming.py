"""A program that is made again from a commit goes on as if it had never stopped, to the last bit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec

from adamctl.kernels.array import Array
from adamctl.optimizers.execution import Progress
from adamctl.optimizers.local import LocalVectors, Objective, Snapshot
from adamctl.optimizers.vectors import Program


def expect_the_same_from_any_commit(
    program: Program, settings: Any, problem: tuple[Objective, Array], budget: int = 300, commits_min: int = 10
) -> None:
    """From each commit to the next, and from one in the middle to the end."""
    objective, start = problem
    snapshots: list[Snapshot] = []
    whole = LocalVectors(objective, start, 1e-4).run(program, settings, budget, snapshots.append)
    assert len(snapshots) >= commits_min
    for before, after in pairwise(snapshots):
        found: list[Snapshot] = []
        again = LocalVectors(objective, stored(before), 1e-4)
        again.run(program, settings, after.progress.evaluations, found.append)
        assert found[0].progress == after.progress
        assert {name: values.tobytes() for name, values in found[0].kept.items()} == {
            name: values.tobytes() for name, values in after.kept.items()
        }
    middle = stored(snapshots[len(snapshots) // 2])
    again = LocalVectors(objective, middle, 1e-4).run(program, settings, budget)
    assert again.x.tobytes() == whole.x.tobytes()
    assert (again.state, again.evaluations, again.further_trials, again.stop_reason) == (
        whole.state, whole.evaluations, whole.further_trials, whole.stop_reason
    )  # fmt: skip


def stored(snapshot: Snapshot) -> Snapshot:
    """A snapshot as it comes back from a file."""
    progress = msgspec.json.decode(msgspec.json.encode(snapshot.progress), type=Progress)
    return Snapshot({name: values.copy() for name, values in snapshot.kept.items()}, progress)
