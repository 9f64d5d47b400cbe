"""The order of one training step, driven by arrivals: forward through the layers, loss, and back.

A step of L layers has 2 L + 1 stages: forward 0..L-1, loss, backward L-1..0. Each needs the result of the stage
before it: the activations that go into a layer, or the error at its outputs. When a model is partitioned (Adam
3.2.5), parts of that result come from workers that hold the neighbouring partitions, called sources here; the stage
is ready when all of them, and the local one, have arrived, in any order and even ahead of time. In the local case
nothing comes from elsewhere, and `adamctl.kernels.step.plan` goes straight through.
It only decides; the owner of the walk does the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

LOCAL = "local"


class Kind(Enum):
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"


@dataclass(frozen=True)
class Stage:
    """One stage of a step; `layer` is the layer it computes; for the loss, the number of layers."""

    number: int
    kind: Kind
    layer: int


def stages_of(layers: int) -> tuple[Stage, ...]:
    """Returns the stages of a step of a network of this many layers, in order."""
    forward = [Stage(layer, Kind.FORWARD, layer) for layer in range(layers)]
    back = [Stage(2 * layers - layer, Kind.BACKWARD, layer) for layer in reversed(range(layers))]
    return (*forward, Stage(layers, Kind.LOSS, layers), *back)


class Walk:
    """One step's progress.

    Attributes:
        stages: all stages of a step.
        position: the number of the next stage to run; `len(stages)` when the step is done.
    """

    def __init__(self, layers: int, remote: Mapping[int, Collection[str]] | None = None) -> None:
        """`remote` names, per stage number, the neighbours that each send a part of the stage's input."""
        self.stages = stages_of(layers)
        self._sources = [frozenset((remote or {}).get(stage.number, ())) for stage in self.stages]
        self._is_remote = any(self._sources)
        self.position = 0
        self._local_arrived = False
        self._missing: list[set[str]] = []
        self.restart()

    def restart(self) -> None:
        """Starts a new step: nothing has arrived."""
        self.position = 0
        self._local_arrived = False
        if self._is_remote or not self._missing:
            self._missing = [set(sources) for sources in self._sources]

    @property
    def done(self) -> bool:
        return self.position == len(self.stages)

    def arrive(self, stage: int = 0, source: str = LOCAL) -> None:
        """Notes that `source`'s part of a stage's input has arrived; the first stage's local part is the batch.

        Raises:
            ValueError: nothing is expected from that source for that stage, or it arrived before.
        """
        if source == LOCAL:
            if stage != self.position or self._local_arrived:
                raise ValueError(f"stage {stage}: its local part cannot arrive while stage {self.position} is next")
            self._local_arrived = True
        elif source not in self._missing[stage]:
            raise ValueError(f"stage {stage}: nothing is expected from {source!r}")
        else:
            self._missing[stage].remove(source)

    def ready(self) -> Stage | None:
        """Returns the stage that can run now, or None if the step is done or still waits for input."""
        if self._local_arrived and not self._missing[self.position]:
            return self.stages[self.position]
        return None

    def run_next(self) -> Stage | None:
        """Returns the stage that is ready, for the caller to run now, and moves past it; None if there is none.

        The stage's result counts as arrived for the next one.
        """
        stage = self.ready()
        if stage is not None:
            self.position += 1
            self._local_arrived = self.position < len(self.stages)
        return stage
