"""Frames per second of more replicas than fit here, planned from rates that the same figure measured (DistBelief 5).

Accuracy is not planned: no planner knows what asynchrony of so many replicas does.
"""

from __future__ import annotations

from math import ceil

import msgspec

from adamctl.bench.figures.cluster_prediction import predicted
from adamctl.bench.figures.distbelief.speech_methods import (
    ADAGRAD,
    BATCH,
    EXAMPLE,
    MACHINE_CORES,
    SERVER_CORES,
    at_replicas,
    experiment_of,
)
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import example
from adamctl.bench.figures.session import Session
from adamctl.bench.serving_rates import server_rates
from adamctl.bench.slices import measure_rates
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.config.partitioning import plan_of
from adamctl.model.layout import ELEMENT_BYTES
from adamctl.model.partition.rates import Rates
from adamctl.model.scaling.machines import Size
from adamctl.model.scaling.rates import ServerRates

BEYOND = (16, 32, 64, 128, 200)
"""Replicas: as many as the paper's 200."""
REPLICAS_PER_SERVER = 8
"""As many for each server as here, where eight replicas have one."""
FRAMES = 112_911
"""Of a pass."""
RATES, SERVER_RATES = "rates", "server-rates"


def take_rates(session: Session) -> None:
    """Takes the rates of this machine, as it is, for the network and for Adagrad on a server."""
    planned = experiment_with(1)
    session.take(RATES, lambda: msgspec.to_builtins(measure_rates([plan_of(planned, 1)], BATCH)))
    session.take(SERVER_RATES, lambda: msgspec.to_builtins(server_rates(planned.optimizer.rule)))


def experiment_with(replicas: int) -> Experiment:
    """Returns the experiment of Downpour with Adagrad and so many replicas."""
    base = load_experiment(example(EXAMPLE)).experiment
    return experiment_of(base, at_replicas(ADAGRAD, replicas), 1.0)


def planned_frames_per_s(rounds: Rounds, replicas: int) -> float:
    """Returns what Downpour with Adagrad trains on as many machines as replicas, and a server for every eight."""
    rates, serving = msgspec.convert(rounds[RATES], Rates), msgspec.convert(rounds[SERVER_RATES], ServerRates)
    size = Size(1, replicas, ceil(replicas / REPLICAS_PER_SERVER), 1)
    frames_per_s, _ = predicted(
        experiment_with(replicas), size, rates, serving, MACHINE_CORES, None, FRAMES, server_cores=SERVER_CORES,
        input_bytes=ELEMENT_BYTES,
    )  # fmt: skip
    return frames_per_s
