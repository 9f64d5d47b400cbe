"""The walk over a step's stages, alone and driven by arrivals from other partitions (Adam 3.2.5)."""

from __future__ import annotations

import random

import pytest

from adamctl.kernels.step.walk import Kind, Walk, stages_of


def drain(walk):
    ran = []
    while (stage := walk.run_next()) is not None:
        ran.append((stage.kind, stage.layer))
    return ran


def test_stages_go_forward_to_the_loss_and_back():
    kinds = [(stage.kind, stage.layer) for stage in stages_of(2)]
    forward, back = [(Kind.FORWARD, 0), (Kind.FORWARD, 1)], [(Kind.BACKWARD, 1), (Kind.BACKWARD, 0)]
    assert kinds == [*forward, (Kind.LOSS, 2), *back]
    assert [stage.number for stage in stages_of(2)] == list(range(5))


def test_a_local_walk_waits_for_its_batch_and_runs_to_its_end():
    walk = Walk(3)
    assert walk.ready() is None and walk.run_next() is None
    walk.arrive()
    assert len(drain(walk)) == 7
    assert walk.done and walk.run_next() is None
    walk.restart()
    assert not walk.done and walk.ready() is None


def test_a_stage_waits_for_every_neighbour():
    walk = Walk(2, {1: ["left", "right"], 3: ["left"]})
    walk.arrive()
    assert drain(walk) == [(Kind.FORWARD, 0)]
    walk.arrive(1, "right")
    assert walk.ready() is None
    walk.arrive(1, "left")
    assert drain(walk) == [(Kind.FORWARD, 1), (Kind.LOSS, 2)]
    walk.arrive(3, "left")
    assert drain(walk) == [(Kind.BACKWARD, 1), (Kind.BACKWARD, 0)]
    assert walk.done


def test_parts_may_come_ahead_of_time():
    walk = Walk(2, {3: ["peer"]})
    walk.arrive(3, "peer")
    walk.arrive()
    assert len(drain(walk)) == 5


@pytest.mark.parametrize("seed", range(20))
def test_in_any_order_of_arrival_all_stages_run_once_in_order(seed):
    generator = random.Random(seed)
    remote = {stage: [f"peer{n}" for n in range(generator.randrange(3))] for stage in range(9)}
    walk = Walk(4, remote)
    for _ in range(2):
        walk.restart()
        events = [(0, "local"), *((stage, source) for stage, sources in remote.items() for source in sources)]
        generator.shuffle(events)
        ran = []
        for stage, source in events:
            walk.arrive(stage, source)
            ran += drain(walk)
        assert ran == [(stage.kind, stage.layer) for stage in walk.stages]


def test_what_nobody_awaits_is_refused():
    walk = Walk(1, {0: ["peer"]})
    walk.arrive(0, "peer")
    with pytest.raises(ValueError, match="nothing is expected from 'peer'"):
        walk.arrive(0, "peer")
    with pytest.raises(ValueError, match="nothing is expected from 'stranger'"):
        walk.arrive(0, "stranger")
    with pytest.raises(ValueError, match="cannot arrive while stage 0 is next"):
        walk.arrive(1)
    walk.arrive()
    with pytest.raises(ValueError, match="cannot arrive"):
        walk.arrive()
