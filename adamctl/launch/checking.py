"""Checks a run's data before anything starts, so that unusable data end the run at once, with the reason."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from adamctl.config.class_weights import class_weights
from adamctl.config.experiment import Experiment
from adamctl.model.metric import takes_targets, target_numbers
from adamctl.model.shapes import infer
from adamctl.optimizers.configured import batch_examples
from adamctl.roles.data.describe.look import Needs, look


def look_at_data(experiment: Experiment, note: Callable[[str], None], *, full: bool = False) -> Experiment:
    """Returns the experiment, set to evaluate on its validation part if the data have no test part.

    `full` reads every example; otherwise headers, all labels and about a thousand examples are checked.

    Raises:
        ConfigurationError: the data are missing, or do not fit the model, the batch, or what is said of their classes.
        DamagedDataError: a file is damaged.
    """
    train = experiment.train
    outputs = infer(experiment.model)[-1].output[-1]
    targets = target_numbers(experiment.model, outputs) if takes_targets(experiment.model) else 0
    needs = Needs(experiment.model.input, outputs, train.batch, experiment.seed, targets)
    looked = look(experiment.data, needs, full=full)
    for warning in looked.warnings:
        note(f"note: {warning}")
    batch_examples(experiment, looked.examples["train"])
    class_weights(train.class_weights, looked.names, looked.class_examples, outputs)
    if train.evaluate_on == "test" and not looked.examples["test"] and looked.examples["validation"]:
        note("note: the data have no test part; the validation part is evaluated")
        return msgspec.structs.replace(experiment, train=msgspec.structs.replace(train, evaluate_on="validation"))
    return experiment
