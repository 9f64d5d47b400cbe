"""An experiment: the typed structs that an `exp.toml` and the Python interface both become.

Structs are frozen and validated once, in `adamctl.config.load`; defaults stand here and nowhere else.
"""

from __future__ import annotations

from math import inf
from typing import Literal

import msgspec

from adamctl.config.records import Acks, default_acks, default_min_in_sync
from adamctl.model.description import Model
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the experiment file; unknown keys are refused."""


class DataConfig(_Section, frozen=True):
    """Where examples come from and how they are made ready.

    Attributes:
        format: `digits` (installs with scikit-learn), `idx`, `npz` or `imagefolder`.
        source: a path, or a bare name such as `mnist` that is looked up in `--data` / ADAMCTL_DATA.
        validation: share of the training set held out, 0 <= share < 1.
        scale: `unit` maps bytes to [0, 1]; `standard` also subtracts the training set's mean and divides by its
            standard deviation (one of each over all pixels); `none` leaves values as they are.
        memory_share: share of this machine's memory that the data server may keep decoded examples in.
        search: folders in which a bare name is looked up, first match wins; filled in from `--data` / ADAMCTL_DATA.
        translate: each pass trains on every image moved by a random whole number of pixels, -translate to translate
            down and as much across, so that no pass sees the same variant (Adam 3.1); what that uncovers gets the
            value of a zero byte. Less than half the images' height and width; 0 leaves them where they are, as
            validation and test images always are.
    """

    format: Literal["digits", "idx", "npz", "imagefolder"] = "digits"
    source: str = "digits"
    validation: float = 0.0
    scale: Literal["unit", "standard", "none"] = "unit"
    memory_share: float = 0.25
    search: tuple[str, ...] = ()
    translate: int = 0


class ScheduleConfig(_Section, frozen=True):
    """How the learning rate moves over the run; `progress` is the share of all examples handed out, 0 to 1.

    Attributes:
        type: `constant`; `step` (times `factor` at each of `every` equal parts); `cosine` (down to lr * final);
            `one_cycle` (up from lr * initial over `warmup`, then cosine down to lr * final).
        warmup: share of the run over which the rate rises linearly to lr first.
        factor, every: for `step`: the rate is lr * factor ** floor(progress * every).
        initial, final: factors of lr where `one_cycle` starts and where `cosine` and `one_cycle` end.
    """

    type: Literal["constant", "step", "cosine", "one_cycle"] = "constant"
    warmup: float = 0.0
    factor: float = 0.1
    every: int = 3
    initial: float = 0.1
    final: float = 0.01


ADAPTIVE = ("adagrad", "rmsprop", "adam")
"""Rules whose step is not in proportion to the gradient: what a replica would apply by itself is another step."""
FIRST_PUSHES = 300
"""Until weights have found their direction: passes over a thousand images, a third of one over tens of thousands."""


class OptimizerConfig(_Section, frozen=True):
    """The rule that runs on the servers, and the learning rate that travels with each push.

    Attributes:
        type: the rule.
        lr: the learning rate, which `optimizer.schedule` moves over the run.
        clip_norm: a layer's mean gradient of one step that is longer than this (weights and biases together) is
            scaled down to it before it is applied or pushed; unset: never. With threads that share weights without
            locks it keeps a high learning rate from running away.
        momentum, nesterov: of `momentum`; nesterov looks one step ahead.
        decay: of `rmsprop`, how much of the mean square is kept at each update.
        beta1, beta2: of `adam`, how much of the mean and of the mean square is kept.
        epsilon: of `rmsprop` and `adam`, added to the root that divides the step.
        weight_decay: each update also subtracts lr * weight_decay * w, apart from the gradient, under every rule.
    """

    type: Literal["sgd", "momentum", "adagrad", "rmsprop", "adam"] = "sgd"
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

    @property
    def rule(self) -> RuleConfig:
        """What servers apply to gradients."""
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


class TrainConfig(_Section, frozen=True):
    """How the run goes.

    Attributes:
        passes: walks over the training set, all of which the schedule of the learning rate spans.
        batch: examples per step of one thread. Under plain sgd the threads of a worker may take shares of a batch each,
            at as much lower rates, which makes their gradients younger (docs/consistency.md).
        n_push: steps of one thread between its pushes (DistBelief 4.1). `auto`: 1, of a whole batch.
        n_fetch: steps of one thread between fetches, each of which starts beside the push of that step. `auto`: a fetch
            starts when a push is applied, and its thread waits for it where the way there and back is short beside the
            time between pushes; under momentum and adam gradients are then computed from where the weights will be
            (docs/consistency.md).
        local_lr: what a replica applies to its own copy between fetches. `auto`: lr under sgd, and under momentum if
            `n_fetch` is a number; else 0.
        protocol: how dense layers are pushed: `auto` chooses by bytes, then by measured time.
        wire_push: what pushed numbers travel as. `bfloat16` and `float16` take half of the bytes; what rounding loses
            of a gradient is added to the next one (error feedback). Factors of 16 bits are always bfloat16, and only
            rounded.
        wire_pull: what fetched parameters travel as. The servers always keep float32, and evaluations see that.
        warmstart_steps: steps that one replica does alone before the others join (DistBelief 4.1).
        warmstart_from: a checkpoint, or a run folder, whose parameters the run starts from instead of fresh ones.
        pass_fraction: with nothing left to hand out, a pass ends when this share of its examples is done (Adam 3.2.5).
        range_batches: batches in one range handed to a worker; fewer where several workers share a pass of few batches.
        evaluate_every: passes between evaluations, 0.25 for every quarter pass.
        evaluate_on: the split that is looked at. `auto`: the validation part where there is one (`data.validation`),
            else the test part.
        keep_best: with evaluations on the validation part, the checkpoint that was best by it is kept, too, and is what
            `eval`, `predict` and `export` take.
        patience: with evaluations on the validation part, end the run after so many of them in a row that were not
            better than the best before; unset: never.
        target: stop when top-1 on that split reaches this share.
        checkpoint_every: passes between checkpoints; 0 writes only the last one.
        checkpoint_keep: how many checkpoints are kept, newest first.
        consistency: `async`: replicas train and push as they come (Downpour). `sync`: they go in step: one update per
            step, from the sum of all replicas' mean gradients, in the order of the replicas; to keep the step of a
            single replica, divide lr by their number (docs/consistency.md). A replica is then a worker with one thread.
        max_staleness: under `async`: a replica waits before a step that would take it more than this many steps ahead
            of the slowest that has something to do; the others do not. Unset: no bound.
    """

    passes: int = 10
    batch: int = 32
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
    consistency: Literal["async", "sync"] = "async"
    max_staleness: int | None = None

    @property
    def in_step(self) -> bool:
        """Whether replicas go in step."""
        return self.consistency == "sync"

    @property
    def steps_per_push(self) -> int:
        """`n_push`, `auto` decided."""
        return 1 if self.n_push == "auto" else self.n_push

    @property
    def steps_per_fetch(self) -> int:
        """`n_fetch`, `auto` decided, where fetches do not follow pushes."""
        return self.steps_per_push if self.n_fetch == "auto" else self.n_fetch

    @property
    def push_protocol(self) -> Literal["auto", "gradient", "factors"]:
        """How dense layers are pushed: in step always as gradients, which can be added up."""
        return "gradient" if self.in_step else self.protocol


class ClusterConfig(_Section, frozen=True):
    """How many processes of each role `adamctl train` starts, or how many it expects with `--join`.

    Attributes:
        workers: processes that train, each with a replica of the model.
        threads: compute threads of each worker. `auto`: what this machine's cores allow.
        ps: parameter servers.
        apply_threads: threads of each parameter server that apply updates. `auto`: what this machine's cores allow.
        data: data servers.
        store: `disk` lets each parameter server that the run starts keep its part of the model in the run folder, so
            that it can be started again when it dies; `none` ends the run with it.
        replication: copies of each part of the model, on different servers, 1 to 3. With two or three the run goes on
            when a server dies: another one that holds a copy takes over.
        acks: when a push is acknowledged: `applied` in a server's memory, `replicated` in that of every server with a
            copy that is in sync, `durable` on the disk of each, for which they need a store. `auto`: `replicated`
            where there is more than one copy, else `applied`.
        min_in_sync: fewest copies in sync with which `replicated` acknowledges anything; with fewer, pushes wait.
            `auto`: 2 of 3, 1 of 2 and 1 of 1.
        loss_window_s: with `applied`, most seconds of acknowledged pushes that the death of a server may take back.
            `auto`: 5, and for models so large that the disk would be busy with them for more than a quarter of the
            time, longer, up to 60.
        loss_window_bytes: most bytes of a server's shards that may differ from its disk; pushes wait beyond.
        connections: of a worker to each parameter server; several where one alone cannot fill the network.
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

    @property
    def acknowledged(self) -> Acks:
        """When a push is acknowledged, `auto` decided."""
        return default_acks(self.replication) if self.acks == "auto" else self.acks

    @property
    def least_in_sync(self) -> int:
        """`min_in_sync`, `auto` decided."""
        return default_min_in_sync(self.replication) if self.min_in_sync == "auto" else self.min_in_sync


class Experiment(_Section, frozen=True):
    """One training run, whole.

    Attributes:
        name: of the run's folder and job: letters, digits, `.`, `_` and `-`, at most 64.
        seed: of initial values, of the order of examples and of dropout.
    """

    name: str
    model: Model
    seed: int = 7
    data: DataConfig = DataConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    train: TrainConfig = TrainConfig()
    cluster: ClusterConfig = ClusterConfig()

    @property
    def evaluated_on(self) -> Literal["test", "validation"]:
        """The split that is looked at, `auto` decided."""
        if self.train.evaluate_on == "auto":
            return "validation" if self.data.validation else "test"
        return self.train.evaluate_on

    def local_learning_rate_factor(self) -> float | None:
        """Returns what to multiply lr with for local application, or None if `local_lr` is a fixed number."""
        if self.train.in_step:
            return 0.0  # all parts of a step are computed from the same weights
        if self.train.local_lr != "auto":
            return None
        looks_ahead = self.optimizer.type == "momentum" and self.fetch_follows_push
        return 0.0 if self.optimizer.type in ADAPTIVE or looks_ahead else 1.0

    @property
    def fetch_follows_push(self) -> bool:
        """Whether a fetch starts when a push is applied, and its thread waits for it where that takes little."""
        return self.train.n_fetch == "auto" and not self.train.in_step

    @property
    def first_pushes(self) -> float:
        """How many pushes of a job, of all workers, threads wait for (`docs/decisions/0023`).

        Plain sgd with several workers has nothing else that makes up for the age of gradients.
        """
        return inf if self.optimizer.type == "sgd" else FIRST_PUSHES

    @property
    def kept_direction(self) -> float:
        """The share of its direction that the rule keeps at each update, where a replica may look ahead by it; else 0.

        What it applied to its weights by itself (`local_lr`) would count twice.
        """
        if not self.fetch_follows_push or self.train.local_lr not in ("auto", 0.0):
            return 0.0
        return {"momentum": self.optimizer.momentum, "adam": self.optimizer.beta1}.get(self.optimizer.type, 0.0)
