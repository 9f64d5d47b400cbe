"""The last layer of one-vs-all classifiers: independent yes-or-no outputs, one per category (DistBelief 5).

z = A W^T + b, p_i = 1 / (1 + exp(-z_i)): the probability that the example is in category i, independent of the others.
Nothing normalises over units, so thousands of them cost a dense layer and one pass over its outputs.
"""

from __future__ import annotations

from adamctl.kernels.layers.dense import Dense


class Logistic(Dense):
    """Inputs [n, *input_shape], outputs [n, units].

    With the loss `losses.Logistic` the outputs are the logits z (`logits` set): only then is the loss exact for large
    logits, and its derivative at them needs no step through the sigmoid. `Network.predict` turns them into
    probabilities. With other losses the outputs are p. Slices are those of a dense layer and need no finish.
    """

    def __init__(
        self, input_shape: tuple[int, ...], units: int, logits: bool = True, backend: str | None = None
    ) -> None:
        super().__init__(input_shape, units, None if logits else "sigmoid", backend)
        self.logits = logits
