"""In which order examples come, as tests judge it."""

from __future__ import annotations

import numpy as np

from adamctl.roles.data.core import Indices, Range
from adamctl.roles.data.order.block_order import BlockOrder, Run
from adamctl.roles.data.sets.open_data_set import OpenDataSet


def whole_pass(dataset: OpenDataSet, split: str, pass_number: int) -> Indices:
    """Returns the draws of a whole pass over a split, in its order."""
    return dataset.visits.draws(Range(split, pass_number, 0, dataset.examples[split]))


def in_file_order(order: BlockOrder, run: Run) -> Indices:
    """Returns the numbers [n] that a run's examples have when all blocks are counted through."""
    firsts = np.cumsum(order.lengths) - order.lengths
    numbers: Indices = firsts[run.blocks] + run.indices
    return numbers
