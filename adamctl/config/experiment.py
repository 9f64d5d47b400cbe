"""An experiment: the typed structs that both an `exp.toml` and the Python interface produce.

Structs are frozen and validated once, in `adamctl.config.load`; defaults are defined only here.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from adamctl.config.algorithms import is_batch_algorithm
from adamctl.config.data import DataConfig
from adamctl.config.records import Acks, default_acks, default_min_in_sync
from adamctl.config.section import Section, SettingValue
from adamctl.model.description import Model
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.stages import CutAxis
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType


class ScheduleConfig(Section, frozen=True):
    """How the learning rate changes over the run; `progress` is the share of all examples handed out, 0 to 1.

    Attributes:
        type: `constant`; `step` (times `factor` at each of `every` equal parts); `cosine` (down to lr * final);
            `one_cycle` (up from lr * initial over `warmup`, then cosine down to lr * final).
        warmup: share of the run, at its start, over which the rate rises linearly to lr.
        factor, every: for `step`: the rate is lr * factor ** floor(progress * every).
        initial, final: factors of lr at which `one_cycle` starts and at which `cosine` and `one_cycle` end.
    """

    type: Literal["constant", "step", "cosine", "one_cycle"] = "constant"
    warmup: float = 0.0
    factor: float = 0.1
    every: int = 3
    initial: float = 0.1
    final: float = 0.01


ADAPTIVE = ("adagrad", "rmsprop", "adam")
"""Rules whose step is not proportional to the gradient: a replica that applied it locally would take another step."""
FIRST_PUSHES = 300
"""Pushes until weights find their direction: passes over a thousand images, a third of one over tens of thousands."""


class OptimizerConfig(Section, frozen=True):
    """An update rule that runs on the servers, and the learning rate that is sent with each push; or a batch algorithm.

    Attributes:
        type: an update rule: `sgd`, `momentum`, `adagrad`, `rmsprop` or `adam`; or a batch algorithm: `lbfgs`
            (L-BFGS), `cg` (conjugate gradient), `owlqn` (OWL-QN, with an L1 term), or one that an installed package
            adds (entry point group `adamctl.optimizers`). A key that a type does not read is refused.
        lr: the learning rate, which `optimizer.schedule` changes over the run.
        clip_norm: largest norm of a layer's mean gradient of one step (weights and biases together); a longer gradient
            is scaled down to it before it is applied or pushed; unset: no clipping. It keeps training with a high
            learning rate from diverging when threads share weights without locks.
        momentum, nesterov: for `momentum`; nesterov looks one step ahead.
        decay: for `rmsprop`, how much of the mean square is kept at each update.
        beta1, beta2: for `adam`, how much of the mean and of the mean square is kept.
        epsilon: for `rmsprop` and `adam`, added to the root that divides the step.
        weight_decay: each update also subtracts lr * weight_decay * w, decoupled from the gradient, under every rule.
            Under a batch algorithm it is an L2 term instead: the loss has weight_decay / 2 * |w|^2 more, its gradient
            weight_decay * w.
        batch: for batch algorithms: how many examples of the training set an evaluation is of, always the same, which
            `seed` chooses; `full`: all. (`train.batch` is how many of them are one step of a thread.)
        history: for `lbfgs` and `owlqn`: pairs of vectors that are kept; each is 8 bytes a parameter, and as many more
            for each further copy.
        gradient_tolerance: for `lbfgs`, `cg` and `owlqn`: stop once no element of the gradient is larger than this.
        change_tolerance: likewise: stop once the loss changes by at most this part of max(|loss|, 1) in an iteration.
        evaluations_max: likewise: most evaluations of one line search.
        l1: for `owlqn`: factor of the sum of |w| that is added to the loss.
        settings: further keys of another package's algorithm, as a table `[optimizer.settings]`.
    """

    type: str = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    nesterov: bool = False
    decay: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = None
    schedule: ScheduleConfig = ScheduleConfig()
    batch: int | Literal["full"] = "full"
    history: int = 10
    gradient_tolerance: float = 1e-5
    change_tolerance: float = 1e-7
    evaluations_max: int = 20
    l1: float = 0.0
    settings: dict[str, SettingValue] = msgspec.field(default_factory=dict)

    @property
    def is_batch(self) -> bool:
        """Whether this is a batch algorithm, which evaluates a whole batch before it changes the parameters."""
        return is_batch_algorithm(self.type)

    @property
    def rule(self) -> RuleConfig:
        """The update rule that servers apply to gradients. Of batch algorithms: `adamctl.optimizers.configured`."""
        assert not self.is_batch, f"{self.type} is no update rule"
        return RuleConfig(
            self.type,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            decay=self.decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
        )


class TrainConfig(Section, frozen=True):
    """How training runs.

    Attributes:
        passes: passes over the training set; the learning-rate schedule spans all of them. Under a batch algorithm each
            evaluation of its batch is one, so this is its budget.
        batch: examples per step of one thread. Under plain sgd the threads of a worker may each take a share of a
            batch, at a proportionally lower rate, which makes their gradients younger (docs/consistency.md).
        class_weights: factor of an example's loss and gradient by its class. `balanced`: classes with few examples
            count as much as those with many; a list: a number for each class; a table class -> number, 1 where none is
            given. All are scaled so that their mean over the training examples is 1. Evaluations are not weighted.
        n_push: steps of one thread between its pushes (DistBelief 4.1). `auto`: 1 step of a whole batch.
        n_fetch: steps of one thread between fetches; each fetch starts together with the push of that step. `auto`: a
            fetch starts when a push is applied, and its thread waits for it if the round trip is short compared with
            the time between pushes; under momentum and adam, gradients are then computed at the predicted weights
            (docs/consistency.md).
        local_lr: rate at which a replica updates its own copy between fetches. `auto`: lr under sgd, and under momentum
            if `n_fetch` is a number; else 0.
        protocol: how dense layers are pushed: `auto` chooses by bytes, then by measured time.
        wire_push: type of pushed numbers on the wire. `bfloat16` and `float16` halve the bytes; the rounding error of a
            gradient is added to the next one (error feedback). 16-bit factors are always bfloat16, without error
            feedback.
        wire_pull: type of fetched parameters on the wire. Servers always keep float32, and evaluations use it.
        warmstart_steps: steps that one replica trains alone before the others join (DistBelief 4.1).
        warmstart_from: a checkpoint or run folder whose parameters the run starts from instead of fresh ones; or a URL.
        pass_fraction: once all examples are handed out, a pass ends when this share of them is done (Adam 3.2.5).
        range_batches: batches in one range handed to a worker; fewer if several workers share a pass of few batches.
        evaluate_every: passes between evaluations, 0.25 for every quarter pass.
        evaluate_on: the split to evaluate on. `auto`: the validation part if there is one (`data.validation`), else the
            test part.
        keep_best: also keep the checkpoint that was best on the validation part, if evaluations use it; `eval`,
            `predict` and `export` then use that one.
        patience: with evaluations on the validation part, end the run after this many in a row without a new best;
            unset: never.
        target: stop when top-1 on that split reaches this share; with another metric, when that is as good as this.
        checkpoint_every: passes between checkpoints; 0 writes only the last one.
        checkpoint_keep: how many of the newest checkpoints are kept.
        checkpoint_url: a folder of this run alone to which finished checkpoints are copied, such as
            `s3://bucket/runs/mnist`, by the coordinator; `--resume` takes the URL, too. Needs `adamctl[remote]`.
        consistency: `async`: replicas train and push independently (Downpour). `sync`: they go in step: one update per
            step, from the sum of all replicas' mean gradients, in the order of the replicas; to keep the step size of a
            single replica, divide lr by their number (docs/consistency.md). Each worker then has one thread.
        max_staleness: under `async`: a replica waits before a step that would put it more than this many steps ahead of
            the slowest replica that has work; the others do not wait. Unset: no bound.
    """

    passes: int = 10
    batch: int = 32
    class_weights: Literal["none", "balanced"] | tuple[float, ...] | dict[str, float] = "none"
    n_fetch: int | Literal["auto"] = "auto"
    n_push: int | Literal["auto"] = "auto"
    local_lr: float | Literal["auto"] = "auto"
    protocol: Literal["auto", "gradient", "factors"] = "auto"
    wire_push: WireType = "float32"
    wire_pull: WireType = "float32"
    warmstart_steps: int = 0
    warmstart_from: str = ""
    pass_fraction: float = 0.75
    range_batches: int = 8
    evaluate_every: float = 1.0
    evaluate_on: Literal["auto", "test", "validation"] = "auto"
    keep_best: bool = True
    patience: int | None = None
    target: float | None = None
    checkpoint_every: float = 1.0
    checkpoint_keep: int = 3
    checkpoint_url: str = ""
    consistency: Literal["async", "sync"] = "async"
    max_staleness: int | None = None

    @property
    def in_step(self) -> bool:
        """Whether replicas go in step."""
        return self.consistency == "sync"

    @property
    def steps_per_push(self) -> int:
        """`n_push` with `auto` resolved."""
        return 1 if self.n_push == "auto" else self.n_push

    @property
    def steps_per_fetch(self) -> int:
        """`n_fetch` with `auto` resolved, for fetches that do not follow pushes."""
        return self.steps_per_push if self.n_fetch == "auto" else self.n_fetch

    @property
    def push_protocol(self) -> Literal["auto", "gradient", "factors"]:
        """How dense layers are pushed: always as gradients when in step, since those can be added up."""
        return "gradient" if self.in_step else self.protocol


class ClusterConfig(Section, frozen=True):
    """How many processes of each role `adamctl train` starts, or how many it expects with `--join`.

    Attributes:
        workers: processes that train, each with a replica of the model or, with partitions, a part of one.
        threads: compute threads of each worker. `auto`: what this machine's cores allow.
        ps: parameter servers. 0: the only replica updates its own weights by the rule of `optimizer`, after every
            batch; `n_push` and `n_fetch` do not count. If a worker dies, the run goes on from the last checkpoint with
            `--resume`.
        apply_threads: threads of each parameter server that apply updates. `auto`: what this machine's cores allow.
        data: data servers.
        store: with `disk`, each parameter server that the run starts keeps its part of the model in the run folder, so
            that it can be restarted when it dies; with `none`, its death ends the run.
        replication: copies of each part of the model, on different servers, 1 to 3. With two or three, the run
            continues when a server dies: another server with a copy takes over.
        acks: when a push is acknowledged: `applied` in a server's memory; `replicated` in the memory of every server
            with an in-sync copy; `durable` on the disk of each of them, which needs a store. `auto`: `replicated` with
            more than one copy, else `applied`.
        min_in_sync: fewest in-sync copies with which `replicated` acknowledges pushes; with fewer, pushes wait.
            `auto`: 2 of 3, 1 of 2 and 1 of 1.
        loss_window_s: with `applied`, the most seconds of acknowledged pushes that the death of a server may lose.
            `auto`: 5; more, up to 60, for models so large that writing them would keep the disk busy for more than a
            quarter of the time.
        loss_window_bytes: the most bytes of a server's shards that may differ from its disk; beyond that, pushes wait.
        connections: connections from a worker to each parameter server; use several if one cannot fill the network.
        partitions: workers that hold a replica together, each a part of every layer; `workers` is a multiple of it.
            See docs/partitions.md. `auto`: of the numbers that divide `workers` and fit the memory, the one that is
            predicted to train fastest; chosen when the run starts.
        flights: batches of a replica that may be on their way through its partitions at a time. `auto`: one more than
            threads, at least 2.
        memory_per_worker: memory that a worker may use, such as "2GB" or "1500MiB"; a run that needs more is refused
            before it starts. Unset: what this machine, or the control group that the process is in, allows to all
            workers that the run starts here.
    """

    workers: int = 1
    threads: int | Literal["auto"] = "auto"
    ps: int = 1
    apply_threads: int | Literal["auto"] = "auto"
    data: int = 1
    replication: int = 1
    store: Literal["disk", "none"] = "disk"
    acks: Acks | Literal["auto"] = "auto"
    min_in_sync: int | Literal["auto"] = "auto"
    loss_window_s: float | Literal["auto"] = "auto"
    loss_window_bytes: int = 4 << 30
    connections: int = 1
    partitions: int | Literal["auto"] = 1
    flights: int | Literal["auto"] = "auto"
    memory_per_worker: str | None = None

    @property
    def acknowledged(self) -> Acks:
        """When a push is acknowledged, with `auto` resolved."""
        return default_acks(self.replication) if self.acks == "auto" else self.acks

    @property
    def least_in_sync(self) -> int:
        """`min_in_sync` with `auto` resolved."""
        return default_min_in_sync(self.replication) if self.min_in_sync == "auto" else self.min_in_sync


class Experiment(Section, frozen=True):
    """One whole training run.

    Attributes:
        name: name of the run's folder and job: letters, digits, `.`, `_` and `-`, at most 64.
        seed: seed of initial values, of the order of examples and of dropout.
        partition: layer name -> how it is cut over the partitions of a replica: an axis, or a table. Unset: as
            docs/partitions.md says.
    """

    name: str
    model: Model
    seed: int = 7
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    cluster: ClusterConfig = ClusterConfig()
    partition: dict[str, CutAxis | Cut] = msgspec.field(default_factory=dict)

    @property
    def evaluated_on(self) -> Literal["test", "validation"]:
        """The split to evaluate on, with `auto` resolved."""
        if self.train.evaluate_on == "auto":
            return "validation" if self.data.validation else "test"
        return self.train.evaluate_on

    @property
    def has_own_parameters(self) -> bool:
        """Whether there are no parameter servers: the replica's own weights are the parameters."""
        return self.cluster.ps == 0

    @property
    def steps_per_update(self) -> int:
        """How many steps of a thread the rule takes together: one where nothing is sent, else `train.n_push`."""
        return 1 if self.has_own_parameters else self.train.steps_per_push

    @property
    def push_protocol(self) -> Literal["auto", "gradient", "factors"]:
        """How dense layers are pushed: always as gradients where those are added up."""
        return "gradient" if self.optimizer.is_batch else self.train.push_protocol

    def local_learning_rate_factor(self) -> float | None:
        """Returns the factor of lr for local updates, or None if `local_lr` is a fixed number."""
        if self.has_own_parameters:
            return 0.0  # the rule itself updates the weights
        if self.optimizer.is_batch:
            return 0.0  # nobody but servers changes parameters
        if self.train.in_step:
            return 0.0  # all parts of a step are computed from the same weights
        if self.train.local_lr != "auto":
            return None
        looks_ahead = self.optimizer.type == "momentum" and self.fetch_follows_push
        return 0.0 if self.optimizer.type in ADAPTIVE or looks_ahead else 1.0

    @property
    def applies_locally(self) -> bool:
        """Whether workers apply gradients to their own weights, too."""
        factor = self.local_learning_rate_factor()
        return (self.train.local_lr if factor is None else factor) != 0.0

    @property
    def fetch_follows_push(self) -> bool:
        """Whether a fetch starts when a push is applied, and its thread waits for it if that takes little time."""
        pushes_gradients = not self.train.in_step and not self.has_own_parameters and not self.optimizer.is_batch
        return self.train.n_fetch == "auto" and pushes_gradients

    @property
    def first_pushes(self) -> float:
        """How many pushes of a job, from all workers, threads wait for (`docs/decisions/0023`).

        With plain sgd and several workers, nothing else compensates for the age of gradients.
        """
        return inf if self.optimizer.type == "sgd" else FIRST_PUSHES

    @property
    def kept_direction(self) -> float:
        """The share of its direction that the rule keeps at each update, if a replica may look ahead by it; else 0.

        With local updates (`local_lr`) the direction would count twice.
        """
        if not self.fetch_follows_push or self.train.local_lr not in ("auto", 0.0):
            return 0.0
        return {"momentum": self.optimizer.momentum, "adam": self.optimizer.beta1}.get(self.optimizer.type, 0.0)
