"""Times what parameter servers and data servers do, one thread each: rates for the simulation of a cluster.

Beside `adamctl.bench.slices`, which times what workers compute. `adamctl bench ps-throughput` and `adamctl bench data`
measure the whole roles, with their networks.
"""

from __future__ import annotations

import itertools
import queue
import statistics
import time
from collections.abc import Callable

import numpy as np
from threadpoolctl import threadpool_limits

from adamctl.config.experiment import Experiment
from adamctl.errors import AdamctlError
from adamctl.kernels.backend import choose
from adamctl.kernels.operation import Array
from adamctl.kernels.rules.factors import FactorUpdate
from adamctl.kernels.rules.make import make_rule
from adamctl.model.rule import RuleConfig
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates
from adamctl.roles.data.core import Range
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.store import DataStore

ELEMENTS = 1 << 22
"""Of a gradient: 16 MiB, so that it comes from memory as it does on a server."""
QUEUED = 8
FACTOR_SIDE, FACTOR_EXAMPLES = 1024, 128
RUNS = 5
DATA_S = 0.5
ASKED_AHEAD = 4
Progress = Callable[[str], None]


def measure_serving_rates(experiment: Experiment, progress: Progress = lambda _: None) -> ServingRates:
    """Returns the rates of this machine for an experiment's rule and data.

    Where its data cannot be opened, there are no rates of data servers; `progress` is told why.
    """
    progress("parameter servers")
    servers = server_rates(experiment.optimizer.rule)
    progress("data servers")
    try:
        return ServingRates(servers, data_rates(experiment))
    except AdamctlError as error:
        progress(f"no data servers: {error}")
        return ServingRates(servers)


def server_rates(config: RuleConfig, clock: Callable[[], float] = time.perf_counter) -> ServerRates:
    """Returns how fast one thread applies a rule, in seconds of a clock."""
    rule = make_rule(config, choose())
    weights, state = _noise(ELEMENTS), rule.initial_state(ELEMENTS)
    gradients = [_noise(ELEMENTS) for _ in range(QUEUED)]

    def apply(count: int) -> None:
        rule.apply_many(weights, weights, state, gradients[:count], [1e-9] * count)

    alone_s, together_s = _seconds(lambda: apply(1), clock), _seconds(lambda: apply(QUEUED), clock)
    more_s = min(max((together_s - alone_s) / (QUEUED - 1), alone_s / QUEUED), alone_s)  # what noise cannot deny
    errors, inputs = (_noise(FACTOR_EXAMPLES * FACTOR_SIDE).reshape(FACTOR_EXAMPLES, FACTOR_SIDE) for _ in range(2))
    side = FACTOR_SIDE * FACTOR_SIDE
    layer, layer_state, update = _noise(side), rule.initial_state(side), FactorUpdate()

    def multiply() -> None:
        update.begin(rule, errors, inputs, (0, FACTOR_SIDE))
        update.apply(rule, [(0, layer, layer, layer_state)], 1e-9)

    with threadpool_limits(limits=1, user_api="blas"):
        products_per_s = FACTOR_EXAMPLES * side / _seconds(multiply, clock)
    per_element = sum(name not in rule.shard_state for name in rule.state_names)
    return ServerRates(config.name, per_element, ELEMENTS / alone_s, ELEMENTS / more_s, products_per_s)


def data_rates(experiment: Experiment) -> DataRates:
    """Returns how fast one thread prepares an experiment's training examples.

    Raises:
        AdamctlError: the data cannot be opened or read.
    """
    length = experiment.train.range_batches * experiment.train.batch
    store = DataStore(threads=1, ahead=0)
    try:
        dataset = store.open(experiment.data, experiment.model.input, experiment.seed)
        examples = dataset.examples["train"]
        ends = min(length, examples)
        wanted = (
            Asked(Range("train", number, at, at + ends))
            for number in itertools.count()
            for at in range(0, examples - ends + 1, ends)
        )
        done: queue.SimpleQueue[ReadyRange | Exception] = queue.SimpleQueue()
        out = read = size_bytes = 0
        begun_s = time.perf_counter()
        while (passed_s := time.perf_counter() - begun_s) < DATA_S or not read:
            while out < ASKED_AHEAD:
                ready = store.read(dataset.name, next(wanted), done.put)
                out += 1
                if ready is not None:
                    done.put(ready)
            found = done.get()
            out -= 1
            if isinstance(found, Exception):
                raise found
            read, size_bytes = read + found.examples, size_bytes + found.layout.size_bytes
            found.release()
        for _ in range(out):
            late = done.get()
            if not isinstance(late, Exception):
                late.release()
        return DataRates(read / max(passed_s, 1e-9), size_bytes / read, examples)
    finally:
        store.close()


def _seconds(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Returns the median time of some calls after the first, which compiles."""
    taken = []
    for _ in range(RUNS + 1):
        began_s = clock()
        call()
        taken.append(clock() - began_s)
    return max(statistics.median(taken[1:]), 1e-9)


def _noise(elements: int) -> Array:
    return np.random.default_rng(elements).standard_normal(elements, np.float32) * np.float32(1e-3)
