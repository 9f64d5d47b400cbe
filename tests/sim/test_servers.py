"""I1 to I6, I8 and I11 to I13 over many seeds; `python -m tests.sim --of servers --first SEED --trace` replays one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adamctl.roles.ps.core_instructions import Refuse
from adamctl.wire.messages import PushReply
from tests.sim.runner import ROOT, Ledger, noted_seeds, run_block, run_seeds
from tests.sim.server_mutants import MUTANTS
from tests.sim.server_scenario import EVENTS_MIN, ServerScenario
from tests.sim.suites import SERVERS

QUICK_SEEDS = 100
SLOW_SEEDS = 10_000
MUTANT_SEEDS = 1_000
NOTED_AND_NEXT = 20
NOTED = noted_seeds((ROOT / "docs" / "simulator.md").read_text(encoding="utf-8"), SERVERS)


@pytest.mark.parametrize("block", range(10))
def test_clean_seeds(block: int) -> None:
    count = QUICK_SEEDS // 10
    found = run_block(SERVERS, 0, "", 1 + block * count, count)
    assert not found.failed, f"{found.reason}; python -m tests.sim --of servers --first {found.failed} --trace"
    assert found.events_min >= EVENTS_MIN


def test_a_seed_replays_exactly() -> None:
    first, second = ServerScenario(17, keep_trace=True), ServerScenario(17, keep_trace=True)
    assert first.run() == second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 50


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_primary_that_was_stopped_for_two_leases_answers_nothing_well(seed: int) -> None:
    """Bar 6: it wakes up, finds pushes that came meanwhile and others that come now, and takes none of them."""
    cluster = ServerScenario(seed).cluster
    world = cluster.world
    if cluster.wild:
        pytest.skip("its clocks are arbitrarily wrong")
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
    assert NOTED.keys() == MUTANTS.keys(), "python -m tests.sim --of servers --find-mutants writes the table"


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    found = run_block(SERVERS, 0, name, NOTED[name], NOTED_AND_NEXT)
    assert found.failed, (
        f"seeds {NOTED[name]} to {NOTED[name] + NOTED_AND_NEXT - 1} do not find {name} any more: "
        "`python -m tests.sim --of servers --find-mutants` looks for others and notes them in docs/simulator.md"
    )


@pytest.mark.slow
def test_thousands_of_seeds() -> None:
    """Goes on from the file that ADAMCTL_SIM_PROGRESS names (and `servers` is added to), if that is set."""
    progress = os.environ.get("ADAMCTL_SIM_PROGRESS")
    ledger = Ledger(Path(f"{progress}-servers") if progress else None, SERVERS, 0, 1)
    failed = run_seeds(SERVERS, 0, 1, SLOW_SEEDS, ledger=ledger)
    assert failed is None, f"{failed}; python -m tests.sim --of servers --first {failed.failed} --trace"
    assert ledger.progress.events_min >= EVENTS_MIN


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_every_planted_fault_is_found_within_a_thousand_seeds(name: str) -> None:
    assert run_block(SERVERS, 0, name, 1, MUTANT_SEEDS).failed
