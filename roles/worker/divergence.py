"""A replica whose loss is not finite any more."""

from __future__ import annotations

from adamctl.errors import RunFailedError


class DivergedError(RunFailedError):
    """This replica's loss is not finite. The servers refuse its gradients, so their parameters still are."""

    retry_helps = False

    @classmethod
    def at(cls, learning_rate: float) -> DivergedError:
        """Returns the error of a step of a whole batch at that rate."""
        text = f"the loss is not finite any more at learning rate {learning_rate:g}: the run diverges"
        return cls(f"{text}; try a lower optimizer.lr, or set optimizer.clip_norm")
