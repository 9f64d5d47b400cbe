"""What an experiment asks of its coordinator: the plans of the pure cores."""

from __future__ import annotations

from typing import Final, Literal

from adamctl.config.experiment import Experiment
from adamctl.config.partitioning import plan_of as partition_plan
from adamctl.model.metric import metric_of
from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.model.shapes import infer
from adamctl.roles.coordinator.core import events
from adamctl.roles.coordinator.core.losses import LossPlan
from adamctl.roles.coordinator.job import partitions_of, replicas_of
from adamctl.roles.coordinator.losses import LOOK_EVERY_S

DATA_AGAIN_S: Final = 30.0  # workers wait longer than this for a read
SERVER_AGAIN_S: Final = 60.0


def run_plan(experiment: Experiment, job: str, wait_s: float, tended: bool) -> events.RunPlan:
    """Returns what the run's core does.

    Args:
        tended: the program that starts this process also starts the others of the run.
    """
    train = experiment.train
    cuts = partition_plan(experiment) if partitions_of(experiment) > 1 else None
    return events.RunPlan(
        job=job,
        passes=train.passes,
        batch=train.batch,
        range_batches=train.range_batches,
        pass_fraction=train.pass_fraction,
        warmstart_steps=train.warmstart_steps,
        evaluate_every=train.evaluate_every,
        evaluate_on=experiment.evaluated_on,
        target=train.target,
        checkpoint_every=train.checkpoint_every,
        workers=replicas_of(experiment),
        connections=sum(shape.connections for shape in infer(experiment.model)),
        no_worker_s=wait_s,
        in_step=train.in_step,
        max_staleness=train.max_staleness,
        keep_best=train.keep_best and experiment.evaluated_on == "validation",
        patience=train.patience,
        tended=tended,
        partitions=partitions_of(experiment),
        plan_hash="" if cuts is None else cuts.hash,
        cuts=cuts,
        has_own_parameters=experiment.has_own_parameters,
        metric=metric_of(experiment.model),
        unanswered_batches=unanswered_batches(experiment.steps_per_update, experiment.cluster.flights),
    )


def unanswered_batches(steps_per_update: int, flights: int | Literal["auto"] = "auto") -> int:
    """Returns how many batches of a thread may be computed while servers have not answered what it pushed before.

    A range whose gradient is pushed at once, with n_push = 1, is reported without waiting for the answer.
    """
    if steps_per_update == 1:
        return 0
    slots = SLOTS_PER_THREAD if flights == "auto" else max(SLOTS_PER_THREAD, 2 * flights)
    return slots * steps_per_update


def loss_plan(experiment: Experiment) -> LossPlan:
    """Returns what is done about servers that are lost."""
    cluster = experiment.cluster
    return LossPlan(cluster.replication > 1, cluster.store != "none", SERVER_AGAIN_S, DATA_AGAIN_S, LOOK_EVERY_S)
