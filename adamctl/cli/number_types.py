"""Numbers on the command line: finite and in a range; an error quotes the value as it was typed."""

from __future__ import annotations

from math import isfinite, nan
from typing import Any

import click

MOST = 1_000_000


class Number(click.FloatRange):
    """A finite number; `least` is an inclusive bound, `above` an exclusive one."""

    def __init__(self, *, least: float | None = None, above: float | None = None, most: float | None = None) -> None:
        super().__init__(min=least if above is None else above, max=most, min_open=above is not None)

    @property
    def expected(self) -> str:
        """The range in words."""
        if self.min is None or self.max is None:
            return "a finite number"
        low = f"above {self.min:g} and at most" if self.min_open else f"from {self.min:g} to"
        return f"a number {low} {self.max:,}"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = nan
        if not isfinite(number) or not self._holds(number):
            self.fail(f"expected {self.expected}; found {value}", parameter, context)
        return number

    def _holds(self, number: float) -> bool:
        if self.min is not None and (number < self.min or (self.min_open and number == self.min)):
            return False
        return self.max is None or number <= self.max


class Numbers(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.3
    """Several numbers, separated by commas."""

    name = "X,X,..."

    def __init__(self, each: Number) -> None:
        self._each = each

    def convert(
        self, value: str | tuple[float, ...], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(self._each.convert(part, None, None) for part in value.split(","))
        except click.BadParameter as error:
            self.fail(f"{error.message} in {value!r}; separate several numbers by commas", parameter, context)


FINITE = Number()
ABOVE_ZERO = Number(above=0, most=MOST)
DEADLINE_S = Number(least=0, most=MOST)
