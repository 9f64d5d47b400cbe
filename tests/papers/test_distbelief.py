"""DistBelief (NIPS 2012), sentence by sentence: what section 4.1 says of Downpour SGD, ours does.

One test per sentence that promises something and is built; names carry the section. Sandblaster (4.2) is not built yet;
of it stands here what the coordinator of a Downpour run already keeps to.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from adamctl.config.experiment import Experiment, OptimizerConfig, TrainConfig
from adamctl.kernels.rules import make_rule
from adamctl.model.description import Model, Softmax
from adamctl.model.layout import build_layout
from adamctl.model.placement import place_buckets
from adamctl.model.rule import RuleConfig
from adamctl.roles import coordinator
from adamctl.roles.coordinator.core.ranges import RangeAllocator
from adamctl.roles.worker.core.slots import Base, SlotCore
from adamctl.wire.constants import UpdateKind
from tests.roles.coordinator.simulation import Simulation
from tests.roles.coordinator.simulation import plan as run_plan
from tests.roles.ps.core_harness import Harness

ONE, OTHER = ("worker-1", 1), ("worker-2", 1)


def actions_of(core: SlotCore, steps: int) -> tuple[list[int], list[int]]:
    """Returns the steps after which one thread pushed, and those after which it fetched."""
    pushed, fetched = [], []
    for number in range(1, steps + 1):
        assert core.begin_step(0) is not None
        actions = core.end_step(0, 8, 0.1, 0.1)
        pushed += [number] if actions.push else []
        fetched += [number] if actions.fetch else []
        if actions.push:
            core.acknowledged(actions.push)
    return pushed, fetched


# --- 4.1 Downpour SGD -----------------------------------------------------------------------------------------------


def test_4_1_parameters_are_sharded_across_servers() -> None:
    """4.1: "if we have 10 parameter server shards, each shard is responsible for" a tenth."""
    layout = build_layout(Model((400,), (Softmax(500),)), 10)
    servers = [f"ps-{number}" for number in range(10)]
    placement = place_buckets(layout, "job", servers)
    total_bytes = sum(bucket.size_bytes for bucket in layout.buckets)
    for server in servers:
        held_bytes = sum(b.size_bytes for b in layout.buckets if placement[b.index] == server)
        assert held_bytes == pytest.approx(total_bytes / 10, rel=0.1)


def test_4_1_shards_run_independently_of_each_other() -> None:
    """4.1: no "guarantee that [...] each shard [has] undergone the same number of updates": a pull says which has."""
    h = Harness("sgd")
    h.push("both", [(0, 1, 1.0), (1, 1, 1.0)], kind=UpdateKind.GRADIENT)
    h.push("one", [(0, 2, 1.0)], kind=UpdateKind.GRADIENT)
    h.apply()
    h.pull("pull", [0, 1])
    parts = h.answers["pull"][-1].message.parts  # type: ignore[union-attr]
    assert [part.pushes for part in parts] == [2, 1]
    assert [part.sequence for part in parts] == [2, 1]


def test_4_1_replicas_run_independently_of_each_other() -> None:
    """4.1: "the model replicas run independently": one that never pushes again holds nobody up."""
    h = Harness("sgd")
    h.push("silent", [(0, 1, 1.0)], client=OTHER, kind=UpdateKind.GRADIENT)
    for sequence in range(1, 6):
        h.push(sequence, [(0, sequence, 1.0)], client=ONE, kind=UpdateKind.GRADIENT)
    h.apply()
    assert all(h.answered(sequence) for sequence in range(1, 6))
    assert h.value(0) == -6.0


def test_4_1_in_the_simplest_implementation_every_step_fetches_and_pushes() -> None:
    """4.1: "before processing each mini-batch"; and "we fixed n_fetch = n_push = 1" is our default too."""
    train = TrainConfig()
    assert (train.steps_per_fetch, train.steps_per_push) == (1, 1)
    pushed, fetched = actions_of(SlotCore(1, 4, train.steps_per_push, train.steps_per_fetch, keeps=True), 5)
    assert pushed == fetched == [1, 2, 3, 4, 5]


def test_4_1_fetches_every_n_fetch_and_pushes_every_n_push_steps() -> None:
    """4.1: "where n_fetch might not be equal to n_push"."""
    pushed, fetched = actions_of(SlotCore(1, 8, n_push=3, n_fetch=4, keeps=True), 12)
    assert pushed == [3, 6, 9, 12]
    assert fetched == [4, 8, 12]


def test_4_1_fetching_pushing_and_computing_are_weakly_synchronised() -> None:
    """4.1: "only weakly synchronized": steps go on while a push and a fetch are on their way."""
    core = SlotCore(1, 4, n_push=1, n_fetch=1, keeps=True)
    core.fetch_started()
    for _ in range(3):
        assert core.begin_step(0) is not None
        assert core.end_step(0, 8, 0.1, 0.1).push is not None
    assert core.unacknowledged == 3 and core.begin_step(0) is not None


def test_4_1_the_server_applies_the_gradient_to_the_current_value() -> None:
    """4.1: "applies the gradient to the current value", not to the one the gradient was computed from."""
    h = Harness("sgd")
    h.push("fresh", [(0, 1, 2.0)], client=ONE, kind=UpdateKind.GRADIENT)
    h.apply()
    h.push("stale", [(0, 1, 3.0)], client=OTHER, base=(0, 0), kind=UpdateKind.GRADIENT)
    h.apply()
    assert h.value(0) == -5.0


def test_4_1_gradients_of_parameters_that_are_out_of_date_are_counted_as_such() -> None:
    """4.1: parameters "slightly out of date": staleness is the pushes of others since the base, not one's own."""
    h = Harness("sgd")
    for sequence in (1, 2):
        h.push(sequence, [(0, sequence, 1.0)], client=OTHER, kind=UpdateKind.GRADIENT)
    h.push("mine", [(0, 1, 1.0)], client=ONE, base=(0, 0), kind=UpdateKind.GRADIENT)
    h.push("mine again", [(0, 2, 1.0)], client=ONE, base=(2, 0), kind=UpdateKind.GRADIENT)
    h.apply()
    assert h.results("mine") == [(0, 2)]
    assert h.results("mine again") == [(0, 0)]


def test_4_1_a_gradient_names_the_parameters_it_was_computed_from() -> None:
    """4.1: "inconsistencies in the timestamps of parameters" are known: the base is that of the slot's first step."""
    core = SlotCore(1, 4, n_push=2, n_fetch=1, keeps=True)
    first, later = (Base(np.array([n]), np.array([0])) for n in (5, 9))
    core.fetched(first)
    core.installed()
    slot = core.begin_step(0)
    core.end_step(0, 8, 0.1, 0.1)
    core.fetched(later)
    core.installed()
    assert core.begin_step(0) is slot
    assert core.end_step(0, 8, 0.1, 0.1).push is slot
    assert slot is not None and slot.base is first


def test_4_1_when_a_replica_fails_the_others_go_on() -> None:
    """4.1: "the other model replicas continue processing their training data": and, here, that of the lost one."""
    run = Simulation(2, run_plan(pass_fraction=1.0, evaluate_every=0.0), examples=200)
    lost = run.add_worker("lost")
    run.add_worker("left")
    run.until(lambda: len(run.handed_out) > 6)
    run.kill(lost)
    run.run()
    assert run.core.run.final_state == "ended"
    assert run.core.run.tally.examples == 3 * 200


# --- 4.1 Adagrad ----------------------------------------------------------------------------------------------------


def test_4_1_adagrad_has_a_rate_for_each_parameter() -> None:
    """4.1: eta_{i,K} = gamma / sqrt(sum_{j=1}^{K} g_{i,j}^2), the present gradient included."""
    generator, gamma = np.random.default_rng(4), 0.3
    rule = make_rule(RuleConfig("adagrad"), "numpy")
    gradients = generator.standard_normal((20, 50)).astype(np.float32)
    weights, state = np.zeros(50, np.float32), rule.initial_state(50)
    for gradient in gradients:
        rule.apply(weights, weights, state, gradient, gamma)
    exact = gradients.astype(np.float64)
    rates = gamma / np.sqrt(np.cumsum(exact**2, axis=0))
    np.testing.assert_allclose(weights, -(rates * exact).sum(axis=0), rtol=1e-4, atol=1e-5)


def test_4_1_adagrad_leaves_a_parameter_without_gradient_alone() -> None:
    """4.1: the formula at a sum of zero: no gradient, no change, also before the first one."""
    h = Harness("adagrad")
    h.push("zero", [(0, 1, 0.0)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert h.value(0) == 0.0
    h.push("one", [(0, 2, 5.0)], kind=UpdateKind.GRADIENT)
    h.push("zero again", [(0, 3, 0.0)], kind=UpdateKind.GRADIENT)
    h.apply()
    assert h.value(0) == pytest.approx(-1.0)


def test_4_1_adagrad_is_local_to_a_shard() -> None:
    """4.1: "easily implemented locally within each parameter server shard": any cut gives the same, bit by bit."""
    generator, size, cut = np.random.default_rng(5), 100, 37
    rule = make_rule(RuleConfig("adagrad"), "numpy")
    whole, state = np.ones(size, np.float32), rule.initial_state(size)
    cuts = (slice(0, cut), slice(cut, size))
    parts = [(np.ones(size, np.float32)[part], rule.initial_state(part.stop - part.start), part) for part in cuts]
    for _ in range(10):
        gradient = generator.standard_normal(size).astype(np.float32)
        rule.apply(whole, whole, state, gradient, 0.1)
        for weights, own, part in parts:
            rule.apply(weights, weights, own, gradient[part], 0.1)
    np.testing.assert_array_equal(np.concatenate([weights for weights, _, _ in parts]), whole)


def test_4_1_under_adagrad_the_rate_is_the_servers_affair() -> None:
    """4.1: the rate adapts on the server, so a replica applies nothing of its own unless it is told to."""
    model = Model((4,), (Softmax(2),))

    def factor(optimizer: str, **train: float) -> float | None:
        experiment = Experiment(
            name="x", model=model, optimizer=OptimizerConfig(type=optimizer), train=TrainConfig(**train)
        )  # type: ignore[arg-type]
        return experiment.local_learning_rate_factor()

    assert factor("adagrad") == 0.0
    assert factor("sgd") == factor("momentum", n_fetch=1) == 1.0
    assert factor("momentum") == 0.0, "fetches follow pushes"
    assert factor("adagrad", local_lr=0.01) is None


def test_4_1_warm_start_with_only_a_single_replica() -> None:
    """4.1: "a single model replica before unleashing the other replicas"."""
    run = Simulation(3, run_plan(warmstart_steps=20, evaluate_every=0.0), examples=400)
    for number in range(3):
        run.add_worker(f"w{number}")
    run.until(lambda: run.core.run.tally.steps >= 10)
    assert run.core.run.state == "warmstart"
    assert len({worker.node for _, worker in run.handed_out}) == 1
    run.run()
    assert {worker.node for _, worker in run.handed_out} == {"w0", "w1", "w2"}


# --- 4.2 of which the coordinator keeps to this already --------------------------------------------------------------


def test_4_2_the_coordinator_has_no_access_to_the_parameters() -> None:
    """4.2: the coordinator "does not have direct access to the model parameters": it neither pulls nor pushes."""
    called = set()
    for path in Path(next(iter(coordinator.__path__))).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                called.add(node.attr)
    assert "checkpoint" in called
    assert not called & {"pull", "push", "start_push", "read_checkpoint"}


def test_4_2_work_is_handed_out_in_small_portions_to_whoever_is_free() -> None:
    """4.2: "much smaller than 1/N th", so that "faster model replicas do more work"."""
    run = Simulation(6, run_plan(passes=1, evaluate_every=0.0, workers=3), examples=1200)
    speeds = {"slow": 0.05, "middling": 0.02, "fast": 0.005}
    for name, seconds_per_example in speeds.items():
        run.add_worker(name, seconds_per_example)
    run.run()
    done = {name: sum(t.stop - t.start for t, w in run.handed_out if w.node == name) for name in speeds}
    assert done["slow"] < done["middling"] < done["fast"]
    assert max(t.stop - t.start for t, _ in run.handed_out) * 10 < 1200 / 3


def test_4_2_a_lost_portion_is_done_by_another() -> None:
    """4.2: "to protect against replica failures": what a dead worker had is handed out before anything new."""
    book = RangeAllocator(passes=1, examples=40, range_examples=10, pass_fraction=1.0)
    lost, kept = book.take(), book.take()
    assert lost is not None and kept is not None
    book.give_back(lost)
    assert book.take() == lost
