"""A network, its cuts and measured rates become times and bytes, which are those of the cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adamctl.model.description import Conv2D, Dense, Model, Softmax
from adamctl.model.layout import tensors_of
from adamctl.model.partition.cost import Conditions, Link, price
from adamctl.model.partition.rules import make_plan
from adamctl.model.partition.work import Pushing, parameter_traffic
from adamctl.model.scaling import machines
from adamctl.model.scaling.machines import Planner, Size, Training
from adamctl.model.scaling.rates import DataRates, ServerRates, ServingRates
from adamctl.roles.coordinator.core import ranges
from tests.model.partition.machines import Even

MODEL = Model((12, 12, 2), (Conv2D(4, 3, padding="same"), Dense(64), Softmax(10)))
SERVING = ServingRates(ServerRates("adagrad", 1, 1e9, 2e9, 1e10), DataRates(500.0, 288.0, 1000))
LINK = Link(1e6, 1e-4, 1e-9)
BATCH = 8
PARAMETERS = sum(tensor.size for tensor in tensors_of(MODEL))


def conditions(protocol: str = "gradient", steps_per_push: int = 1) -> Conditions:
    return Conditions(BATCH, 2, 3, 2, steps_per_push, Pushing(BATCH * steps_per_push, 1, protocol), LINK)


def planner(training: Training | None = None) -> Planner:
    return Planner(training or Training(MODEL, conditions()), Even(1e7), SERVING)


def test_numbers_are_those_of_the_roles() -> None:
    assert machines.RANGES_PER_REPLICA == ranges.RANGES_PER_REPLICA


def test_a_whole_replica_pushes_all_to_one_server_or_a_part_to_each() -> None:
    one, four = (planner().cluster(Size(1, 3, servers, 1)) for servers in (1, 4))
    assert one.work.push_bytes == one.work.fetch_bytes == 4 * PARAMETERS
    assert 4 * PARAMETERS / 4 <= four.work.push_bytes < 4 * PARAMETERS / 2  # the busiest has a bucket more
    share = four.work.push_bytes / one.work.push_bytes
    assert four.server.rates.in_each_bytes_per_s == pytest.approx(one.server.rates.in_each_bytes_per_s * share)
    assert four.server.first_s == pytest.approx(PARAMETERS * share / 1e9)
    assert four.server.more_s == pytest.approx(PARAMETERS * share / 2e9)


def test_a_thread_computes_what_the_cost_model_says_and_carries_its_bytes() -> None:
    alone = price(make_plan(MODEL, 1), Even(1e7), conditions())
    found = planner().cluster(Size(1, 3, 1, 1)).work
    assert found.contexts == 2
    assert found.batch_s == pytest.approx(alone.compute_s[0] + 2 * 4 * PARAMETERS * 1e-9)


def test_flights_of_partitions_are_contexts_that_finish_one_in_each_interval() -> None:
    made = planner()
    size = Size(2, 3, 4, 1)
    found, inside = made.cluster(size), made.inside(size)
    assert found.work.contexts == 3
    assert found.work.batch_s >= inside.interval_s * 3
    assert found.work.push_bytes < 4 * PARAMETERS / 2  # of one partition, to its busiest of two servers


def test_fewer_servers_than_partitions_have_several_each() -> None:
    two, one = (planner().cluster(Size(2, 1, servers, 1)).work.push_bytes for servers in (2, 1))
    assert one == pytest.approx(2 * two, rel=0.1)


def test_factors_cost_products_and_go_whole_to_every_server() -> None:
    factors = Training(MODEL, conditions("factors"))
    one, two = (planner(factors).cluster(Size(1, 1, servers, 1)) for servers in (1, 2))
    dense = sum(tensor.size for tensor in tensors_of(MODEL) if len(tensor.shape) == 2)
    assert one.server.first_s == pytest.approx((PARAMETERS - dense) / 1e9 + BATCH * dense / 1e10)
    assert two.work.push_bytes > one.work.push_bytes / 2


def test_pushes_and_fetches_of_several_steps() -> None:
    for every, pushes, times in ((None, 1, 1), (4, 2, 1), (2, 1, 1), (1, 1, 2)):
        training = Training(MODEL, conditions(steps_per_push=2), steps_per_fetch=every)
        work = planner(training).cluster(Size(1, 1, 1, 1)).work
        assert (work.steps_per_push, work.pushes_per_fetch) == (2, pushes)
        assert work.fetch_bytes == pytest.approx(times * 4 * PARAMETERS)
        assert work.fetch_follows == (every is None)


def test_a_workers_link_has_for_pushes_what_other_traffic_leaves() -> None:
    made, size = planner(), Size(2, 1, 2, 1)
    inside, found = made.inside(size), made.cluster(size)
    plan, pushing = make_plan(MODEL, 2), conditions().pushing._replace(servers=2)
    pushed = max(parameter_traffic(plan, tensors_of(MODEL), p, pushing)[0] for p in range(2))
    other, interval_s = max(inside.sent_bytes), found.work.batch_s / found.work.contexts
    left = max(LINK.bytes_per_s * pushed / (pushed + other), LINK.bytes_per_s - other / interval_s)
    assert 0 < left < 0.95 * LINK.bytes_per_s
    seconds = found.work.push_bytes / found.server.rates.in_each_bytes_per_s
    assert seconds == pytest.approx(pushed / left, rel=1e-2)


def test_blocks_of_a_replica_wait_for_what_it_pushes_through_the_same_links() -> None:
    def intervals_s(bytes_per_s: float, waits: bool) -> tuple[float, float]:
        """Returns how long a batch takes alone, and beside pushes."""
        made = planner(Training(MODEL, replace(conditions(), link=Link(bytes_per_s, 1e-4))))
        found = made.cluster(Size(2, 1, 2, 1)).work
        assert found.waits_for_links == waits
        return made.inside(Size(2, 1, 2, 1)).interval_s, found.batch_s / found.contexts

    alone_s, beside_s = intervals_s(1e6, True)
    assert beside_s > 1.2 * alone_s
    pushed_bytes = planner().cluster(Size(2, 1, 2, 1)).work.push_bytes
    sent_bytes = max(planner().inside(Size(2, 1, 2, 1)).sent_bytes)
    assert (pushed_bytes + sent_bytes) / beside_s <= 1e6 * (1 + machines.AGREEING)
    alone_s, beside_s = intervals_s(1e12, False)
    assert beside_s == pytest.approx(alone_s)


def test_what_is_fetched_seldom_leaves_more_of_a_link_to_blocks() -> None:
    some = replace(conditions(), link=Link(1e6, 1e-4))
    seldom, often = (
        planner(Training(MODEL, some, steps_per_fetch=steps)).cluster(Size(2, 1, 2, 0)).work.batch_s for steps in (9, 1)
    )
    assert seldom < often


def test_copies_data_servers_and_steps_in_step() -> None:
    training = Training(MODEL, conditions(), copies=3, decode_threads=2, keeps_to_steps=True, range_batches=5)
    found = planner(training).cluster(Size(1, 3, 1, 2), spread=0.1, jitter=0.2)
    assert found.data is not None
    assert found.server.copied_bytes == pytest.approx(2 * 2 * 4 * PARAMETERS)
    assert (found.data.servers, found.data.range_batches, found.data.pass_examples) == (2, 5, 1000)
    shared = planner(replace(training, keeps_to_steps=False)).cluster(Size(1, 6, 1, 2)).data
    assert shared is not None and shared.range_batches == 1000 // BATCH // (8 * 6)
    assert found.data.example_s == pytest.approx(1 / 1000)
    assert found.data.example_bytes_s == pytest.approx(288 / 1e6)
    assert (found.work.contexts, found.spread, found.jitter) == (1, 0.1, 0.2)
    without = Planner(replace(training, copies=1), Even(1e7), ServingRates(SERVING.servers))
    assert without.cluster(Size(1, 3, 1, 0)).data is None
