"""Rounds of vector commands and conversions as cases, from memory to memory; and factors turned into updates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from adamctl.bench.kernels.cases import Case
from adamctl.bench.kernels.lbfgs_rounds import ROW_SIZE, commit, measure, shards_of, step
from adamctl.bench.kernels.measuring import Call
from adamctl.kernels.backend import Backend
from adamctl.kernels.numeric import convert
from adamctl.kernels.numeric.commands import PreparedRound
from adamctl.kernels.operation import Array
from adamctl.kernels.rules import FactorUpdate, apply_factors, make_rule
from adamctl.model.commands import Command
from adamctl.model.rule import RuleConfig

ELEMENT_BYTES = 4
SHARD_ELEMENTS = 1 << 18

HISTORY = 10

ROUNDS: dict[str, tuple[int, list[Command]]] = {
    "R1 of L-BFGS": (4 * (2 * HISTORY + 5) + 8, measure(HISTORY)),
    "R2 of L-BFGS": (4 * 8, commit()),
    "R3 of L-BFGS": (4 * (2 * HISTORY + 4), step(HISTORY)),
}
"""Round -> bytes read from and written to memory for each element, and the commands."""


def vector_cases(elements: int) -> Iterator[Case]:
    """Yields a sixteenth of the elements' L-BFGS rounds, which have up to 26 vectors, then every conversion."""
    rounded = elements // 16
    for name, (bytes_each, commands) in ROUNDS.items():
        yield Case(
            name=f"{name}, history {HISTORY}, {rounded >> 10} Ki elements",
            group="vector",
            work=float(bytes_each * rounded),
            bound="memory",
            make=partial(_round, commands, rounded),
            backends=("numpy", "numba"),
        )
    for name in ("bfloat16", "float16"):
        for narrow in (True, False):
            yield Case(
                name=f"{'to' if narrow else 'from'} {name}, {elements >> 20} Mi elements",
                group="convert",
                work=float((ELEMENT_BYTES + 2) * elements),
                bound="memory",
                make=partial(_convert, name, narrow, elements),
                peer={"converted": name, "narrow": narrow, "elements": elements},
            )


def factor_cases(examples: int, outputs: int, inputs: int) -> Iterator[Case]:
    """Yields the update of all shards of a dense layer by factors, with the add and the SGD rule (Adam 4.3.2).

    Its limit is the product rate: an update is a multiplication and an addition, so k M N updates are 2 k M N
    operations.
    """
    for rule in ("add", "sgd"):
        yield Case(
            name=f"factors into {rule}, {examples} examples, {outputs}x{inputs}",
            group="factors",
            work=2.0 * examples * outputs * inputs,
            bound="product",
            make=partial(_factors, rule, examples, outputs, inputs),
            peer={"examples": examples, "outputs": outputs, "inputs": inputs},
        )


def _round(commands: Sequence[Command], elements: int, backend: Backend) -> Call:
    shards = list(shards_of(elements, HISTORY))
    prepared = PreparedRound(commands, backend)

    def carry_out() -> None:
        totals = prepared.new_totals()
        for vectors, accumulator in shards:
            prepared.run(vectors, min(ROW_SIZE, elements), totals, accumulator)

    return carry_out


def _convert(name: str, narrow: bool, elements: int, backend: Backend) -> Call:
    values = _numbers(elements)
    short: Any = np.zeros(elements, np.uint16 if name == "bfloat16" else np.float16)
    function: Any = getattr(convert, f"{'to' if narrow else 'from'}_{name}")
    return (lambda: function(values, short, backend)) if narrow else (lambda: function(short, values, backend))


def _factors(name: str, examples: int, outputs: int, inputs: int, backend: Backend) -> Call:
    rule, update = make_rule(RuleConfig(name), backend), FactorUpdate()
    weights = _numbers(outputs * inputs)
    errors = _numbers(examples * outputs).reshape(examples, outputs)
    activations = _numbers(examples * inputs).reshape(examples, inputs)
    size = max(1, SHARD_ELEMENTS // inputs) * inputs
    shards = [weights[start : start + size] for start in range(0, len(weights), size)]
    states = [rule.initial_state(len(shard)) for shard in shards]
    return lambda: apply_factors(rule, shards, states, errors, activations, 1e-9, update)


def _numbers(elements: int) -> Array:
    return np.random.default_rng(1).standard_normal(elements, np.float32) * np.float32(1e-3)
