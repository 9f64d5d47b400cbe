"""Numbers on the command line: finite, in a range, some with a unit; an error quotes the value as it was typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite, nan
from typing import Any

import click

MOST = 1_000_000
HOSTS_MOST = 10_000
MACHINES_LISTED_MOST = 32
PARTITIONS_MOST = 256
"""`PARTITIONS_MAX` of `adamctl.model.partition.cuts`, which `--help` need not import; a test compares the two."""


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

    def _describe_range(self) -> str:
        """What --help shows of the range; click would show `x<=None` where there is none."""
        return "" if self.min is None and self.max is None else super()._describe_range()

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


class Counts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Several different whole numbers from 1 on, separated by commas."""

    name = "N,N,..."

    def __init__(self, most: int) -> None:
        self._most = most

    def convert(
        self, value: str | tuple[int, ...], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdecimal() and 1 <= int(part) <= self._most for part in parts):
            self.fail(
                f"expected whole numbers from 1 to {self._most}, such as 1,2,4; found {value}", parameter, context
            )
        return tuple(dict.fromkeys(map(int, parts)))


class Quantity(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A finite number with a unit."""

    def __init__(self, name: str, units: Mapping[str, float], example: str, *, zero: bool = False) -> None:
        """`units`: unit -> what one is, in the unit of the result; `zero`: 0 is allowed."""
        self.name, self._units, self._example, self._zero = name, units, example, zero

    def convert(self, value: str | float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", value.strip())
        unit = None if found is None else self._units.get(found[2])
        if found is None or unit is None or not (self._zero or float(found[1]) > 0) or not isfinite(float(found[1])):
            least = "from 0" if self._zero else "above 0"
            units = ", ".join(self._units)
            self.fail(
                f"expected a number {least} with {units}, such as {self._example}; found {value}", parameter, context
            )
        return float(found[1]) * unit


class Hosts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """How many hosts a run begins with and how many it may have: `4`, or `2:8`."""

    name = "N|LEAST:MOST"

    def convert(
        self, value: str | tuple[int, int], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,4})(?::([1-9][0-9]{0,4}))?", value.strip(), re.ASCII)
        least, most = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
        if not 1 <= least <= most <= HOSTS_MOST:
            expected = f"a number of hosts from 1 to {HOSTS_MOST:,}, such as 4, or a range such as 2:8"
            self.fail(f"expected {expected}; found {value}", parameter, context)
        return least, most


class Machines(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Numbers of machines: `1,10,100`, or `1..1000` for some from 1 to 1000, each about twice the one before."""

    name = "N,N,...|N..N"

    def convert(
        self, value: str | tuple[int, ...], parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"([1-9][0-9]{0,4})\.\.([1-9][0-9]{0,4})", value.strip(), re.ASCII)
        if found is None:
            parts = value.split(",")
            if all(re.fullmatch(r"[1-9][0-9]{0,4}", part.strip(), re.ASCII) for part in parts):
                numbers = tuple(dict.fromkeys(int(part) for part in parts))
                if max(numbers) <= HOSTS_MOST and len(numbers) <= MACHINES_LISTED_MOST:
                    return numbers
        elif 1 <= int(found[1]) <= int(found[2]) <= HOSTS_MOST:
            first, last = int(found[1]), int(found[2])
            doubled = (first << power for power in range((last // first).bit_length()))
            return tuple(dict.fromkeys((*doubled, last)))
        expected = f"numbers of machines up to {HOSTS_MOST:,}, such as 1,10,100 or 1..1000"
        self.fail(f"expected at most {MACHINES_LISTED_MOST} {expected}; found {value}", parameter, context)


FINITE = Number()
ABOVE_ZERO = Number(above=0, most=MOST)
DEADLINE_S = Number(least=0, most=MOST)
BYTES_PER_S = Quantity("RATE", {"Kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "MB": 1e6, "GB": 1e9}, "1Gbit")
"""Of a network; bits or bytes per second."""
SECONDS = Quantity("TIME", {"us": 1e-6, "ms": 1e-3, "s": 1.0}, "100us", zero=True)
RUN_TIME_S = Quantity("TIME", {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}, "4h")
