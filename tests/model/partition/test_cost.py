"""The prices of plans: compute, links or the time of a flight, whichever takes longest."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from adamctl.config.load import load_experiment
from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.partition.cost import Link, exchanges, price, price_replicas
from adamctl.model.partition.cuts import Cut
from adamctl.model.partition.plan import PartitionPlan
from adamctl.model.partition.rates import computing
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import PROCESS_BYTES, Pushing, work_of
from tests.documents import ROOT
from tests.model.partition.machines import Even, conditions

DENSE = Model((100,), (Dense(60), Dense(40), Softmax(10)))
CONVOLUTIONS = Model((12, 12, 2), (Conv2D(4, 3, padding="same"), Conv2D(6, 3, padding="same"), Dense(8), Softmax(4)))


def amounts(plan: PartitionPlan, partition: int) -> list[int]:
    works = (work_of(plan, stage.index, partition) for stage in plan.stages)
    return [0 if work is None else work.amount for work in works]


def test_compute_binds_where_links_are_free() -> None:
    plan = make_plan(DENSE, 2, {"dense1": Cut("units", (45,))})
    found = price(plan, Even(), conditions(flights=8))
    slow = sum(amounts(plan, 0)) * 10 / 1e9
    assert found.interval_s == pytest.approx(slow) and found.binds == "compute in 0"
    assert found.examples_per_s == pytest.approx(10 / slow)
    assert price(plan, Even(), conditions(flights=8, threads=3)).interval_s == pytest.approx(slow / 3)


def test_numbers_that_are_only_accrued_or_copied_take_time_too() -> None:
    plan, machine = make_plan(DENSE, 2, {"dense1": Cut("units", (45,))}), Even(float("inf"), 1e6)
    held = 45 * 101 + 20 * 61 + 5 * 41
    gathered = 10 * (60 + (45 + 45) + 40 + (20 + 20))  # inputs of two layers, and errors from both partitions
    assert computing(plan, 0, machine, 10, Pushing(10, 0)).total_s == pytest.approx((held + gathered) / 1e6)
    clipped = computing(plan, 0, machine, 10, Pushing(10, 0, clips=True)).total_s
    assert clipped == pytest.approx((3 * held + gathered) / 1e6)
    factors = 2 * 10 * ((45 + 100) + (20 + 60) + (5 + 40))
    for pushed in (10, 30):  # of three flights
        one = computing(plan, 0, machine, 10, Pushing(pushed, 1, "factors")).total_s
        assert one == pytest.approx((held + gathered + factors) / 1e6)


def test_a_processor_that_sends_and_receives_does_not_compute_meanwhile() -> None:
    plan = make_plan(DENSE, 2, {"dense1": Cut("units", (45,))})
    free = price(plan, Even(), conditions(flights=8)).interval_s
    link = Link(float("inf"), 0.0, processor_s_per_byte=1e-9)
    given = replace(conditions(flights=8), link=link)
    found = price(plan, Even(), given)
    assert found.interval_s == pytest.approx(free + (found.sent_bytes[0] + found.received_bytes[0]) * 1e-9, rel=0.02)


def test_each_block_takes_of_the_processors_at_both_ends() -> None:
    plan = make_plan(DENSE, 2)
    given = conditions(flights=8)
    free, found = (
        price(plan, Even(), replace(given, link=replace(given.link, processor_s_per_block=seconds)))
        for seconds in (0.0, 1e-3)
    )
    assert len(exchanges(plan, 10)) == 5  # two edges up, two down, and the logits
    assert found.interval_s == pytest.approx(free.interval_s + 10e-3, rel=0.02)
    assert found.flight_s == pytest.approx(free.flight_s + 10e-3)


def test_a_flight_alone_waits_for_the_slowest_part_of_each_stage() -> None:
    plan = make_plan(DENSE, 2, {"dense1": Cut("units", (45,)), "dense2": Cut("units", (10,))})
    slowest = sum(map(max, amounts(plan, 0), amounts(plan, 1))) * 10 / 1e9
    found = price(plan, Even(), conditions(flights=1))
    assert found.flight_s == pytest.approx(slowest)
    assert found.interval_s == found.flight_s and found.binds == "too few flights: 1"


def test_latency_is_hidden_by_flights() -> None:
    """Dense, dense and softmax: two edges up, two down, and the logits."""
    plan = make_plan(DENSE, 2)
    still = price(plan, Even(), conditions()).flight_s
    found = price(plan, Even(), conditions(latency_s=1.0, flights=4))
    assert found.flight_s == pytest.approx(still + 5)
    assert found.interval_s == pytest.approx(found.flight_s / 4, rel=1e-4)
    assert found.binds == "too few flights: 4"


def test_links_carry_edges_partial_gradients_pushes_and_fetches() -> None:
    plan = make_plan(CONVOLUTIONS, 2)
    pair = plan.traffic()[0]
    edges = (pair.up_bytes + pair.down_bytes) * 10 + pair.flight_bytes
    rare = price(plan, Even(), conditions(bytes_per_s=1e3, steps_per_push=10**9))
    assert rare.sent_bytes == pytest.approx([edges, edges])
    assert rare.interval_s == pytest.approx(edges / 1e3) and rare.binds.startswith("link of ")
    often = price(plan, Even(), conditions(bytes_per_s=1e3, steps_per_push=1))
    held = 4 * (4 * 19 + 6 * 37 + 4 * 865 + 2 * 9)
    assert often.received_bytes == pytest.approx([edges + held, edges + held])
    assert often.server_bytes == pytest.approx(2 * held)
    assert price(plan, Even(), conditions(servers=4), replicas=3).server_bytes == pytest.approx(2 * held * 3 / 4)


def test_whole_replicas_exchange_nothing_and_share_the_servers() -> None:
    one, four = (price_replicas(DENSE, count, Even(), conditions()) for count in (1, 4))
    assert four.examples_per_s == pytest.approx(4 * one.examples_per_s) and four.interval_s == one.interval_s
    assert one.binds == "compute" and one.flight_s == pytest.approx(one.interval_s)
    slow = price_replicas(DENSE, 4, Even(), conditions(bytes_per_s=1e6))
    assert slow.binds == "links of servers" and slow.link_bytes == slow.server_bytes == 4 * one.server_bytes


def test_memory_decides_whether_it_fits() -> None:
    plan = make_plan(DENSE, 2)
    needed = price(plan, Even(), conditions()).memory_bytes
    assert price(plan, Even(), conditions(memory_bytes=needed)).fits
    assert not price(plan, Even(), conditions(memory_bytes=needed - 1)).fits
    whole = price_replicas(DENSE, 1, Even(), conditions()).memory[0]
    assert whole.parameters == 4 * (60 * 101 + 40 * 61 + 10 * 41) * (3 + 4 + 1)
    assert needed > PROCESS_BYTES


def test_large_networks_are_priced_without_arrays() -> None:
    """The networks of Adam's ImageNet and DistBelief's speech, and one of 20 billion parameters."""
    wide = Model((64, 64, 3), (Conv2D(512, 9), Dense(20_000), Dense(20_000), Softmax(22_000)))
    models = [load_experiment(ROOT / "examples" / name).experiment.model for name in ("imagenet.toml", "speech.toml")]
    tracemalloc.start()
    for model in (*models, wide):
        price(make_plan(model, 4), Even(), conditions(batch=128))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 4 << 20


def test_without_servers_nothing_is_pushed_or_fetched() -> None:
    plan = make_plan(DENSE, 2)
    found = price(plan, Even(), conditions(servers=0))
    edges = sum((one.up_bytes + one.down_bytes) * conditions().batch + one.flight_bytes for one in plan.traffic())
    assert found.server_bytes == 0 and sum(found.sent_bytes) == pytest.approx(edges)
