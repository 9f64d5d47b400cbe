"""Chooses which dense layers of a replica are pushed as factors and which as gradients (Adam 3.2.6).

`train.protocol` decides; with `auto`, first the number of bytes and then measurements of servers and network
(docs/decisions/0012). A slot keeps what both need, so the choice can change from one push to the next: servers accept
both and apply the same update.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from adamctl.config.experiment import TrainConfig
from adamctl.model.layout import ELEMENT_BYTES, Tensor
from adamctl.model.protocol import KEPT_BYTES_MAX, Prices, choose_protocol, has_factors, push_costs, weigh_protocols

WEIGH_EVERY_S = 5.0
WEIGH_RARELY_S = 320.0
"""Each change doubles the wait for the next, up to this: replicas that push faster after one might oscillate."""


def factor_tensors(train: TrainConfig, tensors: Mapping[int, Tensor], copies: Sequence[int]) -> tuple[int, ...]:
    """Returns the tensors that are pushed as factors: all dense weights, none, or those for which that is fewer bytes.

    Args:
        tensors: those that this process pushes, or the rows of them that it does.
        copies: how many times each tensor's activations are sent.
    """
    protocol = train.push_protocol
    if protocol == "gradient":
        return ()
    examples = train.batch * train.steps_per_push
    return tuple(
        index
        for index, tensor in tensors.items()
        if has_factors(tensor)
        and (protocol == "factors" or choose_protocol(tensor, examples, copies[index], train.wire_push) == "factors")
    )


class PushProtocol:
    """What one replica pushes as factors. Used only on its event loop.

    Attributes:
        factors: tensors that are pushed as factors now.
        kept: tensors whose factors every slot keeps.
        skips_gradients: dense gradients are not computed in a step; a push that wants one multiplies its factors.
        fixed: the choice never changes.
    """

    def __init__(
        self,
        train: TrainConfig,
        tensors: Mapping[int, Tensor],
        copies: Sequence[int],
        *,
        applies_locally: bool,
        log: logging.Logger,
    ) -> None:
        """Args:
        tensors: those that the replica pushes, by index; of those that it pushes a part of, that part.
        copies: how often each tensor's activations are sent.
        applies_locally: gradients are used here too.
        """
        chosen = factor_tensors(train, tensors, copies)
        examples = train.batch * train.steps_per_push
        others = [index for index, tensor in tensors.items() if has_factors(tensor) and index not in set(chosen)]
        small = all(
            examples * (tensors[index].shape[0] + tensors[index].row_size) * ELEMENT_BYTES <= KEPT_BYTES_MAX
            for index in others
        )
        self.factors = frozenset(chosen)
        self.skips_gradients = bool(chosen) and not applies_locally and small
        self.kept = tuple(sorted((*chosen, *others))) if self.skips_gradients else chosen
        self.fixed = train.protocol != "auto" or train.push_protocol != "auto" or not chosen
        self._costs = push_costs({index: tensors[index] for index in chosen}, examples, copies, train.wire_push)
        self._names = {index: tensors[index].name for index in chosen}
        self._log = log
        self._weighed_s, self._pause_s = float("-inf"), WEIGH_EVERY_S

    def weigh(self, now: float, prices: Prices | None) -> None:
        """Chooses again if it is time and there are measurements; logs a changed choice."""
        if self.fixed or prices is None or now - self._weighed_s < self._pause_s:
            return
        self._weighed_s = now
        chosen = weigh_protocols(self._costs, self.factors, prices)
        if chosen == self.factors:
            return
        for word, tensors in (("factors", chosen - self.factors), ("a gradient", self.factors - chosen)):
            if tensors:
                self._log.info(
                    "%s: pushed as %s from now on; the busiest server works %.0f%% of the time, the network moves %.2g "
                    "bytes/s", ", ".join(self._names[index] for index in sorted(tensors)), word, 100 * prices.busy,
                    prices.link_bytes_per_s,
                )  # fmt: skip
        self.factors = chosen
        self._pause_s = min(2 * self._pause_s, WEIGH_RARELY_S)
