"""Conflicts between keys of an experiment that are each valid by themselves.

Pure: an experiment in, problems out, as in `adamctl.config.check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from adamctl.config.algorithms import BUILT_IN, is_of_another_package
from adamctl.config.batch_conflicts import batch_problems
from adamctl.config.check import Problem, show, structure_problems
from adamctl.config.data_conflicts import data_problems
from adamctl.config.experiment import ClusterConfig, Experiment, OptimizerConfig
from adamctl.config.partitioning import partition_problems
from adamctl.config.urls import checked_url, is_any_url
from adamctl.errors import ConfigurationError
from adamctl.model.custom.loss import is_custom_loss
from adamctl.model.custom.plain import builtins_of
from adamctl.model.metric import TOP_1, metric_of, takes_targets

NAME_ALLOWED = "letters, digits, '.', '_' and '-', starting with a letter or digit, at most 64"
RULES_READING: dict[str, tuple[str, ...]] = {
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "decay": ("rmsprop",),
    "beta1": ("adam",),
    "beta2": ("adam",),
    "epsilon": ("rmsprop", "adam"),
    "batch": BUILT_IN,
    "history": ("lbfgs", "owlqn"),
    "gradient_tolerance": BUILT_IN,
    "change_tolerance": BUILT_IN,
    "evaluations_max": BUILT_IN,
    "l1": ("owlqn",),
}
"""Settings of the optimizer that would be ignored under other rules and algorithms of ours."""
OF_SEVERAL_RULES = {"momentum", "decay", "beta1"}
"""Whoever gives all of these gives every setting, as the experiment of a run folder does, and means none of them."""


def cross_problems(experiment: Experiment, given: Collection[str] = ()) -> list[Problem]:
    """Returns conflicts between keys that are each valid by themselves.

    `given`: the settings of the optimizer that somebody wrote down, which count as such even if they are the defaults.
    """
    data, train = experiment.data, experiment.train
    problems: list[Problem] = []

    def refuse(key: str, message: str) -> None:
        problems.append(Problem(tuple(key.split(".")), message))

    if not _is_name(experiment.name):
        refuse("name", f"found {show(experiment.name)}; expected {NAME_ALLOWED}: it names a folder and a job")
    problems += data_problems(data, experiment.model.input)
    for key, message in _ignored(experiment.optimizer, given):
        refuse(f"optimizer.{key}", message)
    if train.evaluate_on == "validation" and data.validation == 0:
        refuse("train.evaluate_on", 'found "validation" but data.validation is 0; set data.validation, for example 0.1')
    if train.patience is not None and experiment.evaluated_on != "validation":
        why = "the test part must not decide when a run ends; set data.validation, for example 0.1, or leave it out"
        refuse("train.patience", f"found {train.patience} without evaluations on a validation part; {why}")
    for key in ("checkpoint_url", "warmstart_from"):
        place = getattr(train, key)
        try:
            if (key == "checkpoint_url" and place) or is_any_url(place):
                checked_url(place, f"train.{key}")
        except ConfigurationError as error:
            refuse(f"train.{key}", str(error).removeprefix(f"train.{key}: "))
    for key, message in (*_class_weight_problems(experiment), *_metric_problems(experiment)):
        refuse(key, message)
    for key, message in _consistency_problems(experiment):
        refuse(key, message)
    for key, message in _problems_without_servers(experiment):
        refuse(key, message)
    for key, message in _replication_problems(experiment.cluster):
        refuse(f"cluster.{key}", message)
    if data.on_error == "skip" and experiment.cluster.partitions != 1:
        found = f'found "skip" with cluster.partitions = {show(experiment.cluster.partitions)}'
        why = "partitions of a replica compute whole batches"
        refuse("data.on_error", f'{found}; {why}: set it to "fail", or that to 1')
    problems += [Problem(path, message) for path, message in partition_problems(experiment)]
    problems += batch_problems(experiment)
    return problems


def _metric_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for what a loss cannot have, and for a target that its metric never reaches."""
    target, model, weighs = experiment.train.target, experiment.model, experiment.train.class_weights != "none"
    try:
        metric, has_targets = metric_of(model), takes_targets(model)
    except ConfigurationError as error:
        yield "model.loss", str(error).removeprefix("model.loss: ")
        return
    if metric is TOP_1 and target is not None and not 0 < target <= 1:
        yield "train.target", f"found {target}; expected a number, above 0 and at most 1: a share of the examples"
    if experiment.data.targets == "inputs" and not has_targets:
        why = f'model.loss = {show(model.loss)} compares outputs with labels; set it to "mean_squared_error"'
        yield "data.targets", f'found "inputs", but {why}, or leave this out'
    if has_targets and weighs:
        why = f"model.loss = {show(model.loss)} is trained on targets, which have no classes"
        yield "train.class_weights", f"{why}: leave it out"
    elif weighs and is_custom_loss(model.loss):
        yield "train.class_weights", f"found with model.loss = {show(model.loss)}; weigh in that loss, and leave it out"


def _class_weight_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for class weights that cannot be; `adamctl.config.class_weights` checks them with data."""
    given, key = experiment.train.class_weights, "train.class_weights"
    if given == "none":
        return
    if experiment.data.sampling != "all":
        why = "each makes up for classes with few examples, and both would do so twice"
        yield key, f"found {show(given)} with data.sampling = {show(experiment.data.sampling)}; choose one: {why}"
    if given != "balanced":
        numbers = given.values() if isinstance(given, dict) else given
        if not numbers or min(numbers) < 0:
            kind = "no numbers" if not numbers else f"{min(numbers)}"
            yield key, f'found {kind}; expected numbers of at least 0 for classes, or "balanced"'


def _ignored(optimizer: OptimizerConfig, given: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for settings that the optimizer does not read.

    What an algorithm of another package reads is known when that is loaded (`adamctl.optimizers.configured`).
    """
    if is_of_another_package(optimizer.type):
        return
    named = () if OF_SEVERAL_RULES.issubset(given) else given
    with_type = f"with type = {show(optimizer.type)}"
    for key, types in RULES_READING.items():
        value, default = getattr(optimizer, key), getattr(OptimizerConfig(), key)
        if optimizer.type not in types and (key in named or value != default):
            wanted = " or ".join(show(one) for one in types)
            yield key, f"found {show(value)} {with_type}; expected {wanted}, or leave the key out"
    if optimizer.settings:
        why = "it is for algorithms of other packages, and ours have their settings in [optimizer]"
        yield "settings", f"found {', '.join(optimizer.settings)} {with_type}; leave the table out: {why}"


def _replication_problems(cluster: ClusterConfig) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for settings of copies that cannot be met."""
    copies = cluster.replication
    if copies > cluster.ps > 0:
        found = f"found {copies} copies on {cluster.ps} server{'s' if cluster.ps > 1 else ''}"
        yield (
            "replication",
            f"{found}; each needs a server of its own; set cluster.ps to {copies} or more",
        )
    if cluster.acks == "durable" and cluster.store == "none":
        yield "acks", 'found "durable" with store = "none"; set store = "disk", or acks = "applied"'
    if cluster.acks == "replicated" and copies == 1:
        yield "acks", 'found "replicated" with replication = 1; set replication to 2 or 3, or acks = "applied"'
    if cluster.least_in_sync > copies:
        yield "min_in_sync", f"found {cluster.least_in_sync} of {copies}; expected at most cluster.replication"


def _problems_without_servers(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for settings that need parameter servers, where there are none."""
    train, cluster = experiment.train, experiment.cluster
    if not experiment.has_own_parameters:
        return
    none = "with cluster.ps = 0"
    if cluster.partitions == "auto":
        yield "cluster.partitions", f'found "auto" {none}; say how many: all workers are one replica then'
    elif cluster.workers > cluster.partitions and not cluster.workers % cluster.partitions:
        found = f"found {cluster.workers} {none}, which is {cluster.workers // cluster.partitions} replicas"
        why = "without servers nothing keeps replicas together"
        yield (
            "cluster.workers",
            f"{found}; {why}: set cluster.ps to 1 or more, or this to {cluster.partitions}",
        )
    if cluster.replication > 1:
        found = f"found {cluster.replication} copies {none}"
        yield (
            "cluster.replication",
            f"{found}; servers keep copies: set cluster.ps to {cluster.replication}, or this to 1",
        )
    if cluster.acks not in ("auto", "applied"):
        yield "cluster.acks", f"found {show(cluster.acks)} {none}; servers acknowledge: set cluster.ps, or leave it out"
    if train.in_step:
        why = "there is one replica, which is in step with nobody"
        yield "train.consistency", f'found "sync" {none}; set it to "async": {why}'
    if train.local_lr not in ("auto", 0.0):
        why = "the rule itself updates the weights"
        yield "train.local_lr", f"found {show(train.local_lr)} {none}; leave the key out: {why}"
    for key in ("wire_push", "wire_pull"):
        if getattr(train, key) != "float32":
            yield f"train.{key}", f"found {show(getattr(train, key))} {none}; leave the key out: nothing is sent"
    if train.protocol == "factors":
        yield "train.protocol", f'found "factors" {none}; leave the key out: nothing is sent'


def _consistency_problems(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yields (key, message) for settings that conflict with the chosen consistency."""
    train, cluster = experiment.train, experiment.cluster
    if not train.in_step:
        return
    step = 'with consistency = "sync"'
    for key in ("n_push", "n_fetch"):
        if getattr(train, key) not in ("auto", 1):
            why = "every step ends with a push and begins with a fetch"
            yield f"train.{key}", f"found {getattr(train, key)} {step}; set it to 1: {why}"
    if train.max_staleness is not None:
        why = "replicas in step are never ahead of each other; leave one of the two out"
        yield "train.max_staleness", f"found {train.max_staleness} {step}; {why}"
    if train.protocol == "factors":
        why = "only gradients can be added up"
        yield "train.protocol", f'found "factors" {step}; set it to "auto" or "gradient": {why}'
    if train.local_lr not in ("auto", 0.0):
        why = "a replica's own copy does not change within a step"
        yield "train.local_lr", f"found {show(train.local_lr)} {step}; leave the key out: {why}"
    if train.warmstart_steps:
        why = "replicas in step have no stale gradients for a warm start to avoid"
        yield "train.warmstart_steps", f"found {train.warmstart_steps} {step}; set it to 0: {why}"
    if cluster.threads not in ("auto", 1):
        why = "a replica in step has one thread; for more threads raise cluster.workers"
        yield "cluster.threads", f'found {cluster.threads} {step}; set it to 1 or "auto": {why}'


def experiment_problems(experiment: Experiment) -> list[Problem]:
    """Returns what is wrong with an experiment made in Python, where types are not checked at run time."""
    return structure_problems(builtins_of(experiment)) or cross_problems(experiment)


def _is_name(name: str) -> bool:
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    return 0 < len(name) <= 64 and plain.isascii() and plain.isalnum() and name[0].isalnum()
