"""Makes the batch algorithm of a run from its experiment, or goes on with that of a checkpoint."""

from __future__ import annotations

from adamctl.config.experiment import Experiment
from adamctl.errors import ConfigurationError
from adamctl.model.layout import ParameterLayout
from adamctl.model.shapes import infer
from adamctl.optimizers.configured import batch_examples, start_of
from adamctl.roles.coordinator.core.batch_job import BatchJob
from adamctl.roles.coordinator.core.bundles import cut_bundles
from adamctl.roles.coordinator.core.events import RunSnapshot


def make_batch(
    experiment: Experiment, layout: ParameterLayout, examples: int, snapshot: RunSnapshot | None
) -> BatchJob | None:
    """Returns the batch algorithm of an experiment; None under the rules of Downpour.

    Args:
        examples: of the training set.
        snapshot: of the checkpoint to go on from.

    Raises:
        ConfigurationError: the batch is larger than the training set, or a setting of the algorithm is wrong.
        ProgramError: the first request of the program is refused.
    """
    if not experiment.optimizer.is_batch:
        return None
    connections = sum(shape.connections for shape in infer(experiment.model))
    batch = batch_examples(experiment, examples)
    bundles = cut_bundles(batch, experiment.train.batch, connections, layout.parameter_count)
    former = None if snapshot is None else snapshot.batch
    return BatchJob(experiment.optimizer.type, start_of(experiment), bundles, len(layout.buckets), former)


def check_examples(experiment: Experiment, snapshot: RunSnapshot, examples: int) -> None:
    """Raises ConfigurationError if a checkpoint was made with another number of training examples, or another batch."""
    if not experiment.optimizer.is_batch:
        found, what = examples, "training examples"
    else:
        found, what = batch_examples(experiment, examples), "examples of a batch (optimizer.batch)"
    if snapshot.pass_examples != found:
        raise ConfigurationError(
            f"expected the {snapshot.pass_examples} {what} that the checkpoint was made with, found {found}; use the "
            "same data, or start over with --resume none"
        )
