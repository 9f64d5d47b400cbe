"""What an experiment with a batch algorithm cannot have: each key with the reason, and what to do instead.

A batch algorithm compares the losses of a whole batch at several parameters (DistBelief 4.2), so whatever changes the
loss from one evaluation to the next is refused, and so is what only pushes of single gradients have a use for. Keys
that single algorithms do not read are in `adamctl.config.conflicts.RULES_READING`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from adamctl.config.algorithms import is_of_another_package
from adamctl.config.augment import AugmentConfig
from adamctl.config.check import Problem, show
from adamctl.config.experiment import Experiment, OptimizerConfig, ScheduleConfig, TrainConfig
from adamctl.config.section import Section
from adamctl.model.description import Dropout

STEP_LENGTH = "leave it out: a line search finds the length of each step"
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "optimizer.schedule": ((ScheduleConfig(),), STEP_LENGTH),
    "optimizer.clip_norm": (
        (None,),
        "leave it out: a clipped gradient is not that of the loss, and a line search does not need it",
    ),
    "data.translate": (
        (0,),
        "set it to 0: a line search compares losses, which must be of the same images; shifted copies can be stored "
        "with the data",
    ),
    "data.augment": (
        (AugmentConfig(),),
        "leave it out: a line search compares losses, which must be of the same images; distorted copies can be stored "
        "with the data",
    ),
    "data.on_error": (
        ("fail",),
        "leave it out: losses must be of the same examples, and a skipped one counts in the mean; repair the data or "
        "leave such examples out",
    ),
    "data.sampling": (
        ("all",),
        "leave it out: each pass would be of other examples, and a line search compares losses of the same ones; "
        "train.class_weights weighs classes without repeating them",
    ),
    "train.consistency": (("async",), "leave it out: all workers evaluate at the same parameters in any case"),
    "train.max_staleness": ((None,), "leave it out: all workers evaluate at the same parameters, so none is ahead"),
    "train.n_fetch": (("auto",), "leave it out: parameters are fetched once for each evaluation"),
    "train.n_push": (("auto",), "leave it out: each bundle is pushed once, and its size follows from data and model"),
    "train.local_lr": (("auto", 0.0), "leave it out: workers evaluate at the parameters and do not change them"),
    "train.warmstart_steps": (
        (0,),
        'set it to 0; to begin with Downpour, train with type = "sgd" or "adagrad" first, and set train.warmstart_from '
        "to that run",
    ),
    "train.protocol": (("auto", "gradient"), "leave it out: gradients are added up, which factors cannot be"),
    "train.wire_push": (("float32",), "leave it out: the sum of gradients must not depend on how a batch is cut"),
    "train.wire_pull": (("float32",), "leave it out: a line search needs the loss at the parameters that it chose"),
    "train.pass_fraction": (
        (TrainConfig().pass_fraction, 1.0),
        "leave it out: an evaluation needs the whole batch, and backups finish what is slow",
    ),
}
"""Keys -> (the values that a batch algorithm allows, what to do instead of others, and why)."""
FIXED_STEPS: dict[str, tuple[tuple[Any, ...], str]] = {
    "optimizer.lr": ((OptimizerConfig().lr,), STEP_LENGTH),
}
"""Likewise; an algorithm of another package may have use for them."""


def batch_problems(experiment: Experiment) -> Iterator[Problem]:
    """Yields what a batch algorithm cannot have."""
    optimizer = experiment.optimizer
    if not optimizer.is_batch:
        return
    given = f"with type = {show(optimizer.type)}"
    refused = REFUSED if is_of_another_package(optimizer.type) else {**FIXED_STEPS, **REFUSED}
    for key, (allowed, instead) in refused.items():
        value = attrgetter(key)(experiment)
        if value not in allowed:
            found = "a table" if isinstance(value, Section) else show(value)
            yield Problem(tuple(key.split(".")), f"found {found} {given}; {instead}")
    for index, layer in enumerate(experiment.model.layers):
        if isinstance(layer, Dropout):
            why = "a line search compares losses, which must see the same masks"
            instead = 'take the layer out and set optimizer.weight_decay, or train with type = "sgd"'
            yield Problem(("model", "layers", index), f"found dropout {given}; {instead}: {why}")
    if experiment.has_own_parameters:
        why = "parameter servers hold the algorithm's vectors"
        yield Problem(("cluster", "ps"), f"found 0 {given}; set it to 1 or more: {why}")
    if optimizer.type == "owlqn" and not optimizer.l1:
        wanted = "set it above 0, for example 1e-4: it is the factor of the L1 term"
        yield Problem(("optimizer", "l1"), f'found 0 {given}; {wanted}; without one use "lbfgs"')
