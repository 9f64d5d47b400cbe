"""The inputs of a worker's session, and the replica that a worker has for itself: threads, slots, pushes, fetches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from adamctl.config.experiment import Experiment
from adamctl.kernels.step.network import Network
from adamctl.model.layout import ParameterLayout
from adamctl.model.partition.work import SLOTS_PER_THREAD
from adamctl.roles.coordinator.client import CoordinatorClient
from adamctl.roles.data.client.data_client import DataClient, DataSet
from adamctl.roles.ps.client.parameter_client import ParameterClient
from adamctl.roles.worker.compute import BatchDone, ComputeThreads
from adamctl.roles.worker.core.following import Following
from adamctl.roles.worker.core.foresight import Momentum
from adamctl.roles.worker.downpour import Downpour
from adamctl.roles.worker.own.place import OwnPlace
from adamctl.roles.worker.own.updates import OwnUpdates
from adamctl.roles.worker.pace import Pacer, StepGate
from adamctl.roles.worker.partition.lead import Lead
from adamctl.roles.worker.protocol import PushProtocol
from adamctl.roles.worker.replica import Replica, slots_in_step

SIGN_OF_LIFE_S = 20.0
"""How often a replica with long ranges at least tells the coordinator that its batches make progress."""


@dataclass(frozen=True)
class Session:
    """The inputs of a session.

    Attributes:
        node, incarnation: this worker's.
        network: None where the replica is a group of workers.
        batch: examples of one step.
        threads: compute threads.
        shares: how many steps a batch is cut into, each done by one thread, which pushes after that many.
        lead: where the replica is a group of workers, which this one leads; it is at work already.
        group_epoch: of that group.
    """

    job: str
    node: str
    incarnation: int
    experiment: Experiment
    dataset: DataSet
    network: Network | None
    batch: int
    layout: ParameterLayout
    threads: int
    shares: int
    coordinator: CoordinatorClient
    parameters: ParameterClient | OwnPlace
    data: DataClient
    log: logging.Logger
    lead: Lead[Any] | None = None
    group_epoch: int = 0


class WholeReplica(NamedTuple):
    """A replica of one process. `pacer`: where replicas may be only so many steps apart."""

    replica: Replica
    threads: ComputeThreads
    downpour: Downpour | OwnUpdates
    pacer: Pacer[StepGate] | None


def slots_per_thread(experiment: Experiment) -> int:
    """Returns how many gradients of a thread may be accruing or on their way."""
    if experiment.has_own_parameters:
        return 1  # a thread waits until its gradient is in the weights: waiting would only make the next one older
    if experiment.train.in_step:
        return slots_in_step(experiment.cluster.workers)
    return SLOTS_PER_THREAD


def make_whole_replica(
    session: Session,
    applies_locally: bool,
    done: Callable[[BatchDone], None],
    failed: Callable[[BaseException], None],
) -> WholeReplica:
    """Returns a replica that this process has for itself.

    Args:
        applies_locally: gradients are applied to its own weights, too.
        done: called by the threads for every batch.
        failed: told of pushes and fetches that fail.
    """
    experiment, train, network = session.experiment, session.experiment.train, session.network
    assert network is not None
    parameters = session.parameters
    protocol: PushProtocol | None = None
    if not isinstance(parameters, OwnPlace):
        protocol = PushProtocol(
            train,
            dict(enumerate(session.layout.tensors)),
            parameters.servers_of_tensors(),
            applies_locally=applies_locally,
            log=session.log,
        )
    pacer: Pacer[StepGate] | None = None
    if train.max_staleness is not None:
        pacer = Pacer(session.node, session.incarnation, session.coordinator.step, StepGate)
    replica = Replica(
        network,
        session.layout,
        session.threads,
        session.batch,
        experiment.steps_per_update * session.shares,
        train.steps_per_fetch,
        () if protocol is None else protocol.kept,
        applies_locally,
        slots_per_thread(experiment),
        Following(applies_locally, experiment.first_pushes) if experiment.fetch_follows_push else None,
        Momentum(experiment.kept_direction) if experiment.kept_direction else None,
    )
    threads = ComputeThreads(
        network,
        replica,
        session.threads,
        done=done,
        skip_dense_gradients=protocol is not None and protocol.skips_gradients,
        clip_norm=experiment.optimizer.clip_norm,
        gate=pacer.gate if pacer is not None else None,
    )
    if isinstance(parameters, OwnPlace):
        updates = parameters.updates_of(replica, failed)
        replica.updates_weights = updates.apply
        return WholeReplica(replica, threads, updates, pacer)
    parameters.shared.add(replica.memory)
    return WholeReplica(replica, threads, Downpour(replica, parameters, failed, protocol), pacer)
