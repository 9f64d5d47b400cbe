"""Planted faults of batch runs: other functions in the place of some while a seed runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import isfinite
from typing import Any

import numpy as np

from adamctl.kernels.numeric.accumulate import Accumulator, accumulate
from adamctl.model.commands import ACCUMULATOR, Parts
from adamctl.optimizers import pairs
from adamctl.roles.coordinator.core import batch_orders, batch_run
from adamctl.roles.coordinator.core.batch_run import BatchRun
from adamctl.roles.coordinator.core.bundles import BundleBook, Counted, Given, WorkerKey
from adamctl.roles.ps.apply import vector_work
from adamctl.roles.ps.core import vector_core
from adamctl.roles.ps.core.buffers import Scratch
from adamctl.roles.ps.core.job import Job
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.shard_vectors import DONE, Outcome, ShardVectors
from adamctl.roles.ps.core.vector_requests import Commands, VectorBatch, VectorRequest, vectors_of
from adamctl.roles.worker.core import bundle_work
from adamctl.roles.worker.core.bundle_work import Portion, portions_of
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import BucketVectors, BundleTask
from tests.sim.sandblaster.scenario import SandblasterFault

# --- servers ----------------------------------------------------------------------------------------------------------


def _any_bundle(self: ShardVectors, evaluation: int, bundle: int) -> Outcome | None:
    found = _bundle_outcome(self, evaluation, bundle)
    return None if found == DONE and evaluation == self.evaluation else found


_bundle_outcome = ShardVectors.bundle_outcome


def _added_again(self: ShardVectors, bundle: int) -> None:
    if not self.has(bundle):
        _added(self, bundle)


_added = ShardVectors.added


def _old_bundle(self: ShardVectors, evaluation: int, bundle: int) -> Outcome | None:
    if 0 < evaluation < self.evaluation and 0 <= bundle < self.bundles:
        return DONE if self.has(bundle) else None
    return _bundle_outcome(self, evaluation, bundle)


def _commit_again(
    self: ShardVectors, last: int, number: int, anew: bool, evaluation: int, inputs: Collection[str], last_round: int
) -> Outcome | None:
    found = _commit_outcome(self, last, number, anew, evaluation, inputs, last_round)
    return None if found == DONE and number == last and not self._lacks(inputs) else found


_commit_outcome = ShardVectors.commit_outcome


def _any_commit(
    self: ShardVectors, last: int, number: int, after: int, evaluation: int, inputs: Collection[str]
) -> Outcome | None:
    return _round_outcome(self, last, number, -1, evaluation, inputs)


_round_outcome = ShardVectors.round_outcome


def _point_gone(self: ShardVectors, evaluation: int, at: str, last_round: int) -> Outcome | None:
    before = self.at
    found = _open_outcome(self, evaluation, at, last_round)
    if evaluation == self.evaluation:
        self.at = before
    return found


_open_outcome = ShardVectors.open_outcome


def _never_late(self: ShardVectors, last_round: int) -> Outcome | None:
    """Whatever was sent before a round may be carried out after it."""
    return None


def _sum_alone(self: ShardVectors, evaluation: int, inputs: Collection[str]) -> Outcome | None:
    return self._sum_outcome(evaluation) if ACCUMULATOR in inputs else None


def _zeros_for_lost(self: Commands, shard: Shard) -> VectorBatch:
    vectors = vectors_of(shard)
    for name in self.inputs - vectors.kept - vectors.scratch.keys() - {ACCUMULATOR}:
        vectors.scratch[name] = Scratch(np.zeros(shard.size, np.float32), shard)
    return _batch(self, shard)


_batch = Commands.batch


def _any_vector(self: ShardVectors, vector: str, evaluation: int) -> Outcome:
    found = _pull_outcome(self, vector, evaluation)
    return DONE if vector in self.kept | self.scratch.keys() else found


_pull_outcome = ShardVectors.pull_outcome


def _nan_as_zero(accumulator: Accumulator, part: Any, weight: float, parts_max: int) -> float | None:
    found = accumulate(accumulator, part, weight, parts_max)
    return found if found is None or isfinite(found) else None


def _at_commit_0(job: Job, bucket: int, work: VectorRequest) -> BucketVectors:
    found, shards = _bucket_result(job, bucket, work), work.buckets.get(bucket, ())
    done = bool(shards) and all(work.outcomes[shard.index] == DONE for shard in shards)
    return BucketVectors(bucket, 0, found.epoch) if done and found.code == ErrorCode.STALE_EPOCH else found


_bucket_result = vector_core.bucket_result

# --- the coordinator --------------------------------------------------------------------------------------------------


def _each_copy(self: BundleBook, worker: WorkerKey, given: Given, loss_sum: float, now_s: float) -> Counted:
    now, number = self.evaluation, given.bundle.number
    if now is not None and given[:2] == (now.number, now.attempt) and number in now.done:
        now.losses[len(self.bundles) + number] = loss_sum
    return _done(self, worker, given, loss_sum, now_s)


_done = BundleBook.done


def _as_if_whole(self: BatchRun, buckets: Collection[int]) -> None:
    anew, self._anew = self._anew, False
    _lost(self, buckets)
    self._anew |= anew


_lost = BatchRun._lost


def _always_x(name: str, commit: Any, kept: Any) -> str:
    return "x"


def _in_order_of_reply(operation: str, parts: Iterable[Parts]) -> float:
    if operation == "max_abs":
        return _combined("max_abs", parts)
    total = 0.0
    for part in parts:
        for number in part.numbers:
            total += number
    return total


_combined = batch_orders.combined


# --- workers and programs ---------------------------------------------------------------------------------------------


def _whole_portions(task: BundleTask, batch: int) -> list[Portion]:
    return [portion._replace(share=1.0) for portion in portions_of(task, batch)]


def _always(*numbers: float) -> bool:
    return True


MUTANTS = {
    "bundle-twice": SandblasterFault(
        "a shard adds a bundle that it has",
        ((ShardVectors, "bundle_outcome", _any_bundle), (ShardVectors, "added", _added_again)),
    ),
    "old-evaluation": SandblasterFault(
        "a gradient of an evaluation that is over is added to the open one",
        ((ShardVectors, "bundle_outcome", _old_bundle),),
    ),
    "commit-twice": SandblasterFault(
        "a commit that comes again is carried out again", ((ShardVectors, "commit_outcome", _commit_again),)
    ),
    "point-gone": SandblasterFault(
        "a vector that was written again for an evaluation cannot be pulled for it any more",
        ((ShardVectors, "open_outcome", _point_gone),),
    ),
    "late-commit": SandblasterFault(
        "a commit that was refused for want of a vector is carried out when a later round has written one",
        ((ShardVectors, "_late", _never_late),),
    ),
    "round-after-commit": SandblasterFault(
        "shards do again what was lost, whether they have the commit or not",
        ((ShardVectors, "round_outcome", _any_commit),),
    ),
    "overwritten-point": SandblasterFault(
        "where a commit is done the parameters are taken for the point, whatever it has written",
        ((batch_run, "where_left", _always_x),),
    ),
    "backup-loss-counted": SandblasterFault(
        "the loss of a backup counts besides the first one", ((BundleBook, "done", _each_copy),)
    ),
    "short-portion-unweighted": SandblasterFault(
        "a short portion counts as a whole one", ((bundle_work, "portions_of", _whole_portions),)
    ),
    "scratch-trusted": SandblasterFault(
        "whoever takes a shard over reads scratch that it has not",
        ((ShardVectors, "_inputs_outcome", _sum_alone), (Commands, "batch", _zeros_for_lost)),
    ),
    "stale-point": SandblasterFault(
        "a vector is pulled whatever evaluation it is of", ((ShardVectors, "pull_outcome", _any_vector),)
    ),
    "no-curvature": SandblasterFault(
        "pairs are kept along which the loss does not curve up", ((pairs, "has_curvature", _always),)
    ),
    "nan-accepted": SandblasterFault(
        "a gradient that is not finite adds nothing and counts", ((vector_work, "accumulate", _nan_as_zero),)
    ),
    "dots-by-reply": SandblasterFault(
        "what servers have found is added in the order of their replies",
        ((batch_orders, "combined", _in_order_of_reply),),
    ),
    "moved-at-commit-0": SandblasterFault(
        "a bucket that has moved before its answer says that it is at commit 0",
        ((vector_core, "bucket_result", _at_commit_0),),
    ),
    "lost-once-more": SandblasterFault(
        "a bucket that is lost before the first commit after stores went back is given what others have",
        ((BatchRun, "_lost", _as_if_whole),),
    ),
}
"""By name."""
