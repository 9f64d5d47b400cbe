"""The batch algorithm that an experiment names: its settings, its vectors, and its program with decay and budget.

An algorithm's settings come from `[optimizer]` where that has a key of their name, else from `[optimizer.settings]`.
Whatever it does not read is refused, before anything starts: `check` is for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from adamctl.config.check import Problem, show, suggestion
from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.errors import AdamctlError, ConfigurationError, ProgramError
from adamctl.kernels.rules.make import RULES
from adamctl.model.layout import ELEMENT_BYTES, ParameterLayout
from adamctl.model.rule import VECTORS, RuleConfig
from adamctl.optimizers.execution import Execution, Progress
from adamctl.optimizers.registry import BatchAlgorithm, find
from adamctl.wire.constants import BODY_BYTES_MAX

OF_THE_RUN = frozenset({"type", "settings", "batch", "weight_decay", "schedule", "clip_norm"})
"""Keys of `[optimizer]` that say what is done with an algorithm; it does not read them itself."""
COPY_BYTES_MAX = BODY_BYTES_MAX - (1 << 20)
"""Most bytes of a shard's parameters and state, where it is copied; the rest of a message says whose pushes it has."""
_DEFAULTS = OptimizerConfig()
_PLACE = re.compile(r" - at `\$\.([^`]*)`$")


def algorithm_of(experiment: Experiment) -> BatchAlgorithm:
    """Returns the batch algorithm of an experiment.

    Raises:
        ConfigurationError: there is none of this name, or it cannot be loaded.
    """
    return find(experiment.optimizer.type)


def settings_of(experiment: Experiment) -> msgspec.Struct:
    """Returns the settings of the experiment's batch algorithm.

    Raises:
        ConfigurationError: as `algorithm_of`; or a setting is unknown, not read, or has a value that it cannot have.
    """
    optimizer, algorithm = experiment.optimizer, algorithm_of(experiment)
    problems = list(_problems(optimizer, algorithm))
    if problems:
        raise ConfigurationError("; ".join(map(str, problems)))
    shared = {name: getattr(optimizer, name) for name in _fields(algorithm.settings) & _fields(OptimizerConfig)}
    try:
        return algorithm.settings_of({**shared, **optimizer.settings})
    except ConfigurationError as error:
        raise ConfigurationError(_with_key(error, optimizer)) from error


def vectors_of(experiment: Experiment) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of the kept vectors, besides the parameters, and of the scratch vectors.

    Raises:
        ConfigurationError: as `settings_of`; or the program fails before its first request, or that is refused.
    """
    try:
        execution = start_of(experiment)(None)
    except ProgramError as error:
        raise ProgramError(f"optimizer {experiment.optimizer.type!r}: {error}") from error
    except AdamctlError:
        raise
    except Exception as error:  # the code is another's
        failed = f"optimizer {experiment.optimizer.type!r}: its program failed before its first request"
        raise ConfigurationError(f"{failed}: {type(error).__name__}: {error}") from error
    return execution.kept[1:], execution.scratch


def rule_of(experiment: Experiment) -> RuleConfig:
    """Returns what servers do with a job of this experiment: an update rule, or hold the vectors of an algorithm.

    Raises:
        ConfigurationError: as `vectors_of`.
    """
    if not experiment.optimizer.is_batch:
        return experiment.optimizer.rule
    kept, scratch = vectors_of(experiment)
    return RuleConfig(VECTORS, kept=kept, scratch=scratch)


def start_of(experiment: Experiment) -> Callable[[Progress | None], Execution]:
    """Returns what starts the program, or makes it again from what was committed.

    Its loss and gradient have the L2 term of `optimizer.weight_decay`, and it is stopped after `train.passes`
    evaluations, those before the commit included.

    Raises:
        ConfigurationError: as `settings_of`.
    """
    program, settings = algorithm_of(experiment).program, settings_of(experiment)
    weight_decay, budget = experiment.optimizer.weight_decay, experiment.train.passes

    def start(committed: Progress | None) -> Execution:
        return Execution(program, settings, weight_decay, budget, committed)

    return start


def check(experiment: Experiment) -> None:
    """Refuses a batch algorithm that cannot run; does nothing under update rules.

    Raises:
        ConfigurationError: as `vectors_of`.
    """
    if experiment.optimizer.is_batch:
        vectors_of(experiment)


def check_copies(experiment: Experiment, layout: ParameterLayout) -> None:
    """Refuses shards that could not be copied to another server, since a copy is sent whole, in one message.

    Raises:
        ConfigurationError: as `vectors_of`; or parameters and state of the largest shard are too long.
    """
    copies, optimizer = experiment.cluster.replication, experiment.optimizer
    if copies == 1 or not layout.shards:
        return
    batch = optimizer.is_batch
    arrays = 1 + len(rule_of(experiment).kept if batch else RULES[optimizer.type].state_names)
    largest = max(layout.shards, key=lambda shard: shard.size)
    state_bytes = arrays * largest.size * ELEMENT_BYTES
    if state_bytes <= COPY_BYTES_MAX:
        return
    name = layout.tensors[largest.tensor].name
    less = "keep fewer vectors (optimizer.history)" if batch else f"split the layer of {name} into narrower ones"
    raise ConfigurationError(
        f"cluster.replication: found {copies}; a copy of a shard is sent in one message, of at most "
        f"{COPY_BYTES_MAX >> 20} MiB, and one of {name} has {state_bytes / 2**20:.1f} in {arrays} arrays; {less}, or "
        "set cluster.replication to 1"
    )


def batch_examples(experiment: Experiment, training_examples: int) -> int:
    """Returns how many examples of the training set an evaluation is of.

    Raises:
        ConfigurationError: `optimizer.batch` is more than there are.
    """
    batch = experiment.optimizer.batch
    if batch == "full":
        return training_examples
    if batch > training_examples:
        there = f"the training set has {training_examples} examples"
        raise ConfigurationError(f'optimizer.batch: found {batch}; {there}; lower it, or set it to "full"')
    return batch


def _problems(optimizer: OptimizerConfig, algorithm: BatchAlgorithm) -> Iterator[Problem]:
    """Yields settings of another package's algorithm that it does not read."""
    fields, keys, name = _fields(algorithm.settings), _fields(OptimizerConfig), show(optimizer.type)
    for key in sorted(fields & OF_THE_RUN):
        yield Problem(("optimizer", key), f"{name} has a setting of this name, which is not its own; it must rename it")
    own = sorted(fields - keys)
    for key in optimizer.settings:
        if key in fields & keys:
            yield Problem(
                ("optimizer", "settings", key), f"found in a table where it is not read; write optimizer.{key}"
            )
        elif key not in fields:
            allowed = f"Allowed here: {', '.join(own)}." if own else f"{name} has no settings of its own."
            meant = suggestion(key, own)
            yield Problem(("optimizer", "settings", key), f"unknown setting of {name}.{meant} {allowed}")
    for key in _DEFAULTS.__struct_fields__:
        value = getattr(optimizer, key)
        if key not in fields | OF_THE_RUN and value != getattr(_DEFAULTS, key):
            read = ", ".join(sorted(fields & keys)) or "none of these keys"
            yield Problem(
                ("optimizer", key), f"found {show(value)} with type = {name}, which reads {read}; leave the key out"
            )


def _fields(struct: type[msgspec.Struct]) -> set[str]:
    return set(struct.__struct_encode_fields__)


def _with_key(error: ConfigurationError, optimizer: OptimizerConfig) -> str:
    """Returns a message of `BatchAlgorithm.settings_of` with the key that it is about, where it tells one."""
    text: Any = str(error).removeprefix("[optimizer]: ")
    place = _PLACE.search(text)
    if place is None:
        return f"optimizer: the settings of {show(optimizer.type)}: {text}"
    table = "optimizer.settings" if place[1].partition("[")[0] in optimizer.settings else "optimizer"
    return f"{table}.{place[1]}: {text[: place.start()]}"
