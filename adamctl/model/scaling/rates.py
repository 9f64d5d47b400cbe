"""Measured rates of the machines that serve: parameter servers and data servers (Adam 3.1, 3.3.1, 4.3.2).

Beside `adamctl.model.partition.rates`, which has what computes. `adamctl plan --machines --json` prints both, and
`--rates FILE` takes them.
"""

from __future__ import annotations

import msgspec

from adamctl.errors import ConfigurationError


class ServerRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rates of one apply thread, from memory.

    Attributes:
        rule: that was measured.
        state_vectors: that the rule keeps, of the parameters' size.
        apply_per_s: elements of a gradient that is applied alone.
        apply_more_per_s: elements of each further gradient that is applied together with it.
        products_per_s: multiply-adds of factors.
    """

    rule: str
    state_vectors: int
    apply_per_s: float
    apply_more_per_s: float
    products_per_s: float

    def times(self, factor: float) -> ServerRates:
        """Returns the rates of a machine that is so many times as fast."""
        return msgspec.structs.replace(self, **{name: getattr(self, name) * factor for name in APPLY_RATES})


APPLY_RATES = ("apply_per_s", "apply_more_per_s", "products_per_s")
"""What is faster on a faster machine, of `ServerRates`."""


class DataRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rates of one decoding thread.

    Attributes:
        examples_per_s: read, decoded and augmented.
        example_bytes: as they are sent.
        examples: of a pass.
    """

    examples_per_s: float
    example_bytes: float
    examples: int


class ServingRates(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What serves. `data`: None where no data were found: then data servers are not planned."""

    servers: ServerRates
    data: DataRates | None = None


def check_serving_rates(rates: ServingRates) -> None:
    """Checks rates that come from a file.

    Raises:
        ConfigurationError: one is not a finite number above 0.
    """
    for part in (rates.servers, rates.data):
        for name, value in ({} if part is None else msgspec.structs.asdict(part)).items():
            is_count = name == "state_vectors"
            if not isinstance(value, str) and not (value >= 0 if is_count else 0 < value < float("inf")):
                least = "a number from 0" if is_count else "a finite number above 0"
                raise ConfigurationError(f"serving_rates: expected {least} for {name}; found {value}")
