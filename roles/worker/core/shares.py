"""Into how many shares a worker's threads cut each batch (pure).

Under plain sgd a thread applies its gradient to the weights that all threads share at once, so what is left of a
gradient's age are the steps that the other threads make meanwhile. Threads that take a share of a batch each, at a rate
as much smaller, make steps as much smaller: the weights move by the same amount per batch, and a gradient misses less
of it. Rules that follow the gradient's size or direction would make another step of it, so it is done under sgd only.

Every step passes over all parameters to accrue its gradient, however few its examples are. A share must hold enough
work beside that: convolutions use each weight many times per example, a dense layer once.
"""

from __future__ import annotations

from adamctl.config.experiment import Experiment
from adamctl.model.shapes import infer

EXAMPLES_MIN = 16
"""Of a share: kernels lose some percent below."""
WORK_MIN = 1024
"""Multiply-adds of a share's forward pass per parameter: accruing it takes about one percent of its step."""


def shares_of(experiment: Experiment, parameters: int, threads: int) -> int:
    """Returns how many shares each batch is cut into: one, unless threads share weights that follow plain gradients.

    `parameters`: how many the model has.
    """
    train, optimizer = experiment.train, experiment.optimizer
    decided = train.n_push != "auto" or train.n_fetch != "auto" or train.local_lr != "auto"
    plain = optimizer.type == "sgd" and not optimizer.weight_decay and optimizer.clip_norm is None
    if decided or not plain or train.in_step or train.max_staleness is not None:
        return 1
    work = sum(layer.connections for layer in infer(experiment.model)) / parameters
    examples_min = max(EXAMPLES_MIN, WORK_MIN / work)
    most = min(threads, int(train.batch / examples_min))
    return max((shares for shares in range(1, most + 1) if train.batch % shares == 0), default=1)
