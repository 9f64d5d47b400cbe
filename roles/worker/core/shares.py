"""How many shares a worker's threads cut each batch into (pure).

Under plain sgd a thread applies its gradient to the shared weights at once, so a gradient's age is only the steps that
other threads make meanwhile. If each thread takes a share of a batch, at a learning rate reduced by the same factor,
steps are smaller by that factor: the weights move by the same amount per batch, and a gradient misses less of it. Rules
that depend on the size or history of gradients would make a different step of it, so this is done under sgd only.

Every step passes over all parameters to accrue its gradient, however few examples it has. A share must contain enough
work compared to that: convolutions use each weight many times per example, a dense layer once.
"""

from __future__ import annotations

from adamctl.config.experiment import Experiment
from adamctl.model.shapes import infer

EXAMPLES_MIN = 16
"""The least examples of a share: kernels lose a few percent below."""
WORK_MIN = 1024
"""Least multiply-adds of a share's forward pass per parameter: then accruing takes about one percent of a step."""


def shares_of(experiment: Experiment, parameters: int, threads: int) -> int:
    """Returns how many shares each batch is cut into: one, unless threads share weights under plain sgd.

    `parameters`: the model's number of parameters.
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
