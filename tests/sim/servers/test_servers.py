"""I1 to I6, I8 and I11 to I13 over many seeds; `python -m tests.sim --of servers --first SEED --trace` replays one."""

from __future__ import annotations

import gc
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

from adamctl.roles.ps.core.instructions import Refuse
from adamctl.wire.messages import PushReply
from tests.sim.servers.clients.real_worker import has_real_clients
from tests.sim.servers.mutants.clients import MUTANTS as CLIENT_MUTANTS
from tests.sim.servers.mutants.jobs import MUTANTS as JOB_MUTANTS
from tests.sim.servers.mutants.keeping import MUTANTS as KEEPING_MUTANTS
from tests.sim.servers.mutants.servers import MUTANTS
from tests.sim.servers.mutants.shells import MUTANTS as SHELL_MUTANTS
from tests.sim.servers.scenario import ServerScenario
from tests.sim.suite_checks import check_clean, check_documented, check_found, check_found_early, check_many, noted
from tests.sim.suites import SERVERS

QUICK_SEEDS, AT_ONCE = 30, 10
SLOW_SEEDS = 10_000
NOTED_AND_NEXT = 20
NOTED = noted(SERVERS)


@pytest.mark.parametrize("first", range(1, QUICK_SEEDS, AT_ONCE))
def test_clean_seeds(first: int) -> None:
    check_clean(SERVERS, range(first, first + AT_ONCE))


FINDERS = (
    184, 570, 1586, 2314, 2939, 3420, 4727, 6042, 6219, 6493, 6786, 6873, 7070, 7320,
    7344, 7942, 8953, 8991, 9152, 9381, 9642,
)  # fmt: skip


@pytest.mark.parametrize("seed", FINDERS)
def test_seeds_that_have_found_something_are_clean(seed: int) -> None:
    """What each of them found is told in docs/simulator.md."""
    check_clean(SERVERS, range(seed, seed + 1))


@pytest.mark.parametrize(("seed", "real_clients"), [(19, False), (21, True)])
def test_a_seed_replays_exactly(seed: int, real_clients: bool) -> None:
    first, second = ServerScenario(seed, keep_trace=True), ServerScenario(seed, keep_trace=True)
    assert first.cluster.real_clients == real_clients
    result = first.run()
    assert result == second.run() and result.acknowledged > 100 and result.pulled > 10
    assert first.world.lines == second.world.lines and len(first.world.lines) > 50


@pytest.mark.parametrize("seed", [21, 40])
def test_nothing_is_under_way_afterwards(seed: int) -> None:
    """It would end in the middle of another test. Seed 40 has another cluster before its own."""
    gc.disable()
    try:
        before = _under_way()
        ServerScenario(seed).run()
        assert not [work.__qualname__ for work in _under_way() - before]
    finally:
        gc.enable()


def _under_way() -> set[Coroutine[Any, Any, Any]]:
    return {one for one in gc.get_objects() if inspect.iscoroutine(one) and one.cr_frame is not None}


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_primary_that_was_stopped_for_two_leases_answers_nothing_well(seed: int) -> None:
    """Bar 6: it wakes up, finds pushes that came meanwhile and others that come now, and takes none of them."""
    cluster = ServerScenario(seed).cluster
    world = cluster.world
    if cluster.wild:
        pytest.skip("its clocks are arbitrarily wrong")
    with cluster.running():
        cluster.begin()
        world.run_until(6.0)
        record = cluster.invariants.records[0]
        stale = cluster.servers[record.primary]
        client = cluster.add_client("w9")
        world.run_until(6.5)
        client.attach_to(stale.name)
        world.run_until(7.0)
        codes: list[int] = []

        def answered(reply: object, arrays: object = None) -> None:
            if isinstance(reply, PushReply):
                codes.extend(result.code for result in reply.results)
            elif isinstance(reply, Refuse):
                codes.append(reply.code)

        stale.pause()
        for delay_s in (0.5, 1.0, 1.5):
            world.after(delay_s * cluster.lease_s, lambda: client.push_to(stale.name, 0, record.epoch, answered))
        world.run_until(world.now_s + 2 * cluster.lease_s)
        assert cluster.invariants.records[0].primary != stale.name, "nobody has taken over"
        stale.resume()
        client.push_to(stale.name, 0, record.epoch, answered)
        world.run_until(world.now_s + 1.0)
        assert codes and all(codes)
        assert cluster.invariants.records[0].primary != stale.name


def test_the_document_tells_of_every_planted_fault() -> None:
    check_documented(SERVERS)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    check_found(SERVERS, name, NOTED[name], NOTED_AND_NEXT)


@pytest.mark.parametrize("name", CLIENT_MUTANTS)
def test_a_planted_fault_of_the_client_is_found(name: str) -> None:
    assert has_real_clients(NOTED[name])
    check_found(SERVERS, name, NOTED[name], NOTED_AND_NEXT)


@pytest.mark.slow
def test_thousands_of_seeds() -> None:
    check_many(SERVERS, SLOW_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHELL_MUTANTS | KEEPING_MUTANTS | JOB_MUTANTS)
def test_a_planted_fault_of_the_shells_or_of_a_kind_of_job_is_found(name: str) -> None:
    check_found(SERVERS, name, NOTED[name], NOTED_AND_NEXT)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS.mutants)
def test_every_planted_fault_is_found_within_a_thousand_seeds(name: str) -> None:
    check_found_early(SERVERS, name)
