"""Which training examples are held out, and which a pass is of, where classes count.

Pure functions of their arguments, so that any number of data servers agree without communication.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from adamctl.config.check import show
from adamctl.config.class_weights import of_classes
from adamctl.config.data import DataConfig
from adamctl.errors import ConfigurationError
from adamctl.roles.data.core import (
    FILE_ORDER,
    VALIDATION_STREAM,
    Indices,
    pass_order,
    permutation,
    random_bits,
    split_validation,
)
from adamctl.roles.data.readers.source import Groups, Labels, Peek, Source, groups_of, own_weights
from adamctl.roles.data.readers.targets import target_count

Weights = NDArray[np.float64]

ONE: Final = 1 << 30
"""Expected draws are counted in units of 2^-30, so that their sums are exact and the same on every machine."""
_STEP: Final = 663_608_941  # ONE divided by the golden ratio: what it leaves out, the next passes bring
_SAMPLING_STREAM: Final = 0x5341_4D50 << 32  # "SAMP"


# --- the validation part --------------------------------------------------------------------------------------------


def hold_out(source: Source | Peek, config: DataConfig, seed: int) -> tuple[Indices, Indices]:
    """Returns (training, validation) as `DataConfig.validation` and `stratify` say: disjoint ascending file indices.

    Groups of examples (`groups_of`) are held out whole.

    Raises:
        ConfigurationError: a group has examples of several classes, and classes are to give their shares.
    """
    labels = source.labels("train")
    if config.stratify:
        _check_classes(source, "data.stratify = true")
    groups = groups_of(source, "train") if config.validation else None
    if groups is not None:
        return _split_groups(groups, labels, config, seed)
    if config.stratify:
        return split_by_class(labels, config.validation, seed)
    return split_validation(len(labels), config.validation, seed)


def _split_groups(groups: Groups, labels: Labels, config: DataConfig, seed: int) -> tuple[Indices, Indices]:
    """Holds out that share of the examples, or a group more; of each class that share of its groups, if stratified."""
    _, first, of_example, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    if config.stratify:
        if (labels != labels[first][of_example]).any():
            raise ConfigurationError(
                f"data.stratify: expected recordings of one class each in {config.source!r}, found one with several: "
                "set it to false"
            )
        held_out = split_by_class(labels[first], config.validation, seed)[1]
    else:
        drawn = permutation(len(sizes), seed, VALIDATION_STREAM)
        most = int(np.searchsorted(np.cumsum(sizes[drawn]), round(config.validation * len(labels)))) + 1
        held_out = drawn[: min(most, len(sizes) - 1)]
    is_held_out = np.isin(of_example, held_out)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def split_by_class(labels: Labels, share: float, seed: int) -> tuple[Indices, Indices]:
    """Returns (training, validation) of which each class gives its share.

    round(share * examples) are held out, shared out to the classes by largest remainders; of equal remainders the
    class of the lower number comes first. A class always keeps an example to train on.
    """
    classes, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    if not len(classes):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    quotas = share * counts
    taken = np.floor(quotas).astype(np.int64)
    remainders = quotas - taken
    remainders[taken + 1 >= counts] = 0  # one more would be its last
    missing = round(share * len(labels)) - int(taken.sum())
    taken[np.argsort(-remainders, kind="stable")[: min(missing, int((remainders > 0).sum()))]] += 1
    drawn = permutation(len(labels), seed, VALIDATION_STREAM)
    by_class = drawn[np.argsort(places[drawn], kind="stable")]
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    held_out = np.arange(len(labels)) - firsts < np.repeat(taken, counts)
    return np.sort(by_class[~held_out]), np.sort(by_class[held_out])


# --- passes by weight -----------------------------------------------------------------------------------------------


class WeightedPasses:
    """Passes of n draws from n training examples, each of which is drawn in proportion to its weight.

    Systematic sampling (Madow 1949): expected draws, n w_i / sum of w, are laid end to end, and those are drawn that
    contain a point of a grid of spacing 1. So an example with e expected draws comes floor(e) to ceil(e) times in a
    pass, and a class, whose examples lie side by side, as often as its sum says, to the next whole number. The grid
    moves by the golden ratio from pass to pass, so that examples drawn less than once take turns.
    """

    def __init__(self, members: Indices, labels: Labels, weights: Weights, seed: int) -> None:
        """
        Args:
            members: file indices of the training part, [n].
            labels: of the whole file, [examples].
            weights: of the members, [n].
        """
        self._every, self._plain, self._seed = len(labels), members, seed
        mixed = permutation(len(members), seed, _SAMPLING_STREAM)
        mixed = mixed[np.argsort(labels[members[mixed]], kind="stable")]
        self._members = members[mixed]
        self._ends = np.cumsum(expected_draws(weights)[mixed])

    def order(self, pass_number: int) -> Indices:
        """Returns what a pass is of, [n]: file index + k x examples of the file for the draw k, from 0, of an example.

        FILE_ORDER gives every member once. Depends on nothing but the arguments.
        """
        if pass_number == FILE_ORDER:
            return self._plain
        ends = (self._ends + grid_point(self._seed, pass_number)) // ONE
        counts = np.diff(ends, prepend=0)
        draws = np.arange(len(self._members)) - np.repeat(ends - counts, counts)
        drawn = np.repeat(self._members, counts) + draws * self._every
        return drawn[pass_order(len(drawn), self._seed, pass_number)]


def grid_point(seed: int, pass_number: int) -> int:
    """Returns how far the grid of a pass has moved, in units of 1 / ONE, below ONE."""
    return (int(random_bits(seed, _SAMPLING_STREAM, 1)[0]) + pass_number * _STEP) % ONE


def expected_draws(weights: Weights) -> NDArray[np.int64]:
    """Returns how often a pass of n draws is expected to draw each of n examples, in units of 1 / ONE; sum: n ONE.

    What is a whole number stays one.
    """
    shares = weights / weights.max()
    expected: NDArray[np.int64] = np.rint(shares * (len(shares) / shares.sum()) * ONE).astype(np.int64)
    missing = len(expected) * ONE - int(expected.sum())
    broken = np.flatnonzero(expected % ONE)[: abs(missing)]
    expected[broken] += np.sign(missing)
    expected[np.argmax(expected)] += missing - int(np.sign(missing)) * len(broken)
    return expected


def weights_of(config: DataConfig, source: Source | Peek, members: Indices) -> Weights | None:
    """Returns the weights of training examples as `DataConfig.sampling` says, [n]; None if each is drawn once.

    Raises:
        ConfigurationError: there is no such class, the source has no weights, or they cannot be weights.
    """
    if config.sampling == "all":
        return None
    labels = source.labels("train")[members]
    if config.sampling != "weights":
        _check_classes(source, f"data.sampling = {show(config.sampling)}")
    if config.sampling == "balanced":
        return np.asarray(1.0 / np.bincount(labels)[labels])
    if config.sampling == "weights":
        return _checked(_own_weights(config, source)[members], config.source)
    by_class = np.array(of_classes(config.sampling, source.classes, "data.sampling", 1.0))
    if not by_class[labels].any():
        named = ", ".join(name for name, weight in config.sampling.items() if weight)
        raise ConfigurationError(
            f"data.sampling: expected a weight above 0 for a class that has training examples; found {named or 'none'}"
        )
    return np.asarray(by_class[labels])


def _check_classes(source: Source | Peek, key: str) -> None:
    """Raises ConfigurationError if examples have targets in place of classes."""
    if target_count(source):
        raise ConfigurationError(f"{key}, but these examples have targets, numbers in place of classes: leave it out")


def _own_weights(config: DataConfig, source: Source | Peek) -> Weights:
    found = own_weights(source)
    if found is None:
        raise ConfigurationError(
            f'data.sampling = "weights", but data of format "{config.format}" have none: store them in an .npz archive '
            'as the array weights, or set data.sampling to "balanced" or a table of classes'
        )
    weights, examples = np.asarray(found("train"), np.float64), len(source.labels("train"))
    if weights.shape != (examples,):
        raise ConfigurationError(
            f"{config.source}: expected a weight for each of {examples} training examples, found {list(weights.shape)}"
        )
    return weights


def _checked(weights: Weights, origin: str) -> Weights:
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise ConfigurationError(
            f"{origin}: expected weights of at least 0, found {weights[bad[0]]:g}, and {len(bad)} such in all"
        )
    if not weights.any():
        raise ConfigurationError(f"{origin}: expected a weight above 0 in the training part, found none")
    return weights
