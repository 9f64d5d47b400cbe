"""The error of a replica whose loss is no longer finite."""

from __future__ import annotations

from adamctl.errors import RunFailedError


class DivergedError(RunFailedError):
    """This replica's loss is not finite. The servers refuse its gradients, so their parameters stay finite."""

    retry_helps = False

    @classmethod
    def at(cls, learning_rate: float) -> DivergedError:
        """Returns the error of a whole batch's step at that rate."""
        text = f"the loss is no longer finite at learning rate {learning_rate:g}: the run diverges"
        return cls(f"{text}; try a lower optimizer.lr, or set optimizer.clip_norm")
