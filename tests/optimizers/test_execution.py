"""What every driver is asked for, and in which order; what is refused before anything is asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from adamctl.errors import ProgramError
from adamctl.model.commands import ACCUMULATOR, COMMANDS_MAX, OPERANDS, OPERANDS_MAX, Apply, Command, Reduce, Set
from adamctl.optimizers.execution import BUDGET, STATE_BYTES_MAX, Execution, Progress
from adamctl.optimizers.local import LocalVectors
from adamctl.optimizers.vectors import Combination, Commit, Evaluate, Request, Round, State, Vector, Vectors, dot

DOT_X, DOT_T = Reduce("dot", (("x",), ("x",))), Reduce("dot", (("t",), ("t",)))

KEPT = Set("x", ((1.0, "t"),)), Set("g", ((1.0, "h"),))


def descend(v: Vectors, settings: float, state: State) -> Iterator[Any]:
    """Three steps of gradient descent."""
    t, h, g = v.scratch("t"), v.scratch("h"), v.kept("g")
    done = state.get("done", 0)
    yield v.evaluate(at=v.x, into=h)
    gradient = h
    while done < 3:
        yield v.round(t.set(v.x - settings * gradient), dot(gradient, gradient))
        f = yield v.evaluate(at=t, into=h)
        done += 1
        yield v.commit(v.x.set(t), g.set(h), state={"done": done, "loss": f})
        gradient = g
    return "done"


def carried_out(execution: Execution, answers: Callable[[Request], Any]) -> list[Request]:
    found: list[Request] = []
    while execution.request is not None:
        found.append(execution.request)
        execution.answer(answers(execution.request))
    return found


def ones(request: Request) -> Any:
    match request:
        case Evaluate():
            return 1.0
        case Round():
            return [1.0 for command in request.commands if isinstance(command, Reduce)]
        case Commit():
            return None


def program(*requests: Request) -> Callable[[Vectors, Any, State], Iterator[Any]]:
    def run(v: Vectors, _: Any, __: State) -> Iterator[Any]:
        v.kept("g")
        v.scratch("t")
        for number in range(len(requests)):
            yield requests[number]
        return "done"

    return run


def commands_of(request: Request) -> tuple[Command, ...]:
    assert not isinstance(request, Evaluate)
    return request.commands


def test_a_gradient_is_set_by_the_first_command_of_the_next_round() -> None:
    execution = Execution(descend, 0.5, budget=100)
    assert (execution.kept, execution.scratch) == (("x", "g"), ("t", "h"))
    requests = carried_out(execution, ones)
    assert requests[:5] == [
        Evaluate("x", "h"),
        Round((Set("h", ((1.0, ACCUMULATOR),)), Set("t", ((1.0, "x"), (-0.5, "h"))), Reduce("dot", (("h",), ("h",))))),
        Evaluate("t", "h"),
        Round((Set("h", ((1.0, ACCUMULATOR),)),)),  # a commit writes no scratch vector
        Commit(KEPT, {"done": 1, "loss": 1.0}, evaluations=2, further_trials=1),
    ]
    assert execution.stop_reason == "done"
    assert (execution.evaluations, execution.rounds, execution.further_trials) == (4, 9, 1)


def test_a_gradient_for_a_kept_vector_is_committed() -> None:
    evaluate, after = Evaluate("x", "g"), Round((Set("t", ((1.0, "g"),)),))
    requests = carried_out(Execution(program(evaluate, after), None, weight_decay=0.5), ones)
    set_g = Set("g", ((1.0, ACCUMULATOR), (0.5, "x")))
    assert requests == [Round((DOT_X,)), evaluate, Commit((set_g,), {}, evaluations=1), after]


def test_weight_decay_is_in_the_loss_and_the_gradient_and_costs_no_round_after_the_first() -> None:
    losses = []

    def watched(v: Vectors, settings: float, state: State) -> Iterator[Any]:
        inner, answer = descend(v, settings, state), None
        while True:
            try:
                request = inner.send(answer)  # type: ignore[attr-defined]
            except StopIteration as stopped:
                return stopped.value
            answer = yield request
            if isinstance(request, Evaluate):
                losses.append(answer)

    def answers(request: Request) -> Any:
        if isinstance(request, Evaluate):
            return 2.0
        return [10.0 if found in (DOT_X, DOT_T) else 1.0 for found in request.commands if isinstance(found, Reduce)]

    execution = Execution(watched, 0.5, weight_decay=0.1)
    requests = carried_out(execution, answers)
    assert losses == [2.0 + 0.1 / 2 * 10.0] * 4
    assert requests[:2] == [Round((DOT_X,)), Evaluate("x", "h")]
    assert commands_of(requests[2])[0] == Set("h", ((1.0, ACCUMULATOR), (0.1, "x")))
    assert requests[3] == Round((DOT_T,))  # once: only now is it known that losses are wanted at t
    squares = [DOT_T in commands_of(one) for one in requests[5:] if isinstance(one, Round)]
    assert squares == [False, True, False, True, False]
    assert execution.rounds == 11


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_infinite_and_sets_no_gradient(loss: float) -> None:
    found = []

    def run(v: Vectors, _: Any, __: State) -> Iterator[Any]:
        h = v.scratch("h")
        found.append((yield v.evaluate(at=v.x, into=h)))
        yield v.round(dot(v.x, v.x))
        return "done"

    requests = carried_out(Execution(run, None), lambda request: loss if isinstance(request, Evaluate) else [1.0])
    assert found == [math.inf]
    assert requests == [Evaluate("x", "h"), Round((DOT_X,))]


def test_the_budget_ends_a_program_at_its_last_commit() -> None:
    execution = Execution(descend, 0.5, budget=3)
    carried_out(execution, ones)
    assert (execution.stop_reason, execution.evaluations) == (BUDGET, 3)
    assert execution.committed == Progress({"done": 2, "loss": 1.0}, 3, 1)


def test_what_was_committed_is_gone_on_from() -> None:
    requests = carried_out(Execution(descend, 0.5, committed=Progress({"done": 2}, 7, 4)), ones)
    assert requests[-1] == Commit(KEPT, {"done": 3, "loss": 1.0}, evaluations=9, further_trials=5)


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([Round((Set("u"),))], "command 0 writes 'u'"),
        ([Round((Set("g"),))], "command 0 writes 'g'; expected one of t"),
        ([Round((Vector("t").set(Vector("u")),))], "reads 'u'"),
        ([Round((Set("t", ((1.0, "g"),) * (OPERANDS_MAX + 1)),))], f"at most {OPERANDS_MAX} operands"),
        ([Round((Set("t"),) * (COMMANDS_MAX + 1))], f"at most {COMMANDS_MAX}"),
        ([Round((Vector("t").set(float("nan") * Vector("g")),))], "finite factors"),
        ([Round((Vector("t").set(Combination(((1.0, "t"), (1.0, "v")))),))], "reads 'v'"),
        ([Evaluate("u", "t")], "an evaluation names 'u'"),
        ([Evaluate("x", ACCUMULATOR)], f"an evaluation names '{ACCUMULATOR}'"),
        ([Commit((Set("t"),), {})], "writes 't'; expected one of g, x"),
        ([Commit((DOT_X,), {})], "a commit only sets vectors"),
        ([Commit((), {"f": math.nan})], "without NaN, infinities or tuples; found others in f"),
        ([Commit((), {"f": (1, 2)})], "found others in f"),
        ([Commit((), {"f": object()})], "what JSON holds"),
        ([Commit((), {"f": "a" * STATE_BYTES_MAX})], f"at most {STATE_BYTES_MAX} bytes"),
        ([Evaluate("x", "t"), "stop"], "found str"),
        ([Round((Reduce("sum", (("t",),)),))], "command 0 reads 't', not written since the last commit"),
        ([Round((Set("t", ((2.0, "t"),)),))], "command 0 reads 't', not written"),
        ([Round((Set("t"),)), Commit((Set("g", ((1.0, "t"),)),), {}), Round((DOT_T,))], "command 0 reads 't', not wri"),
        ([Commit((Set("g", ((1.0, "t"),)),), {})], "command 0 reads 't', not written"),
        ([Evaluate("t", "g")], "an evaluation reads 't', not written"),
        ([Evaluate("x", "t"), Commit((), {}), Evaluate("t", "g")], "an evaluation reads 't', not written"),
        ([Round((Set("t", ((1.0, ACCUMULATOR),)),))], "is read by evaluations alone"),
        ([Round(("t = x",))], "expected commands"),
        ([Round((Set("t", ((None, "x"),)),))], "expected commands"),
        ([Round((Set(3),))], "expected commands"),
        ([Round((Set("t", 3),))], "expected commands"),
        ([Round((object(),))], "expected commands"),
        ([Evaluate(None, "t")], "an evaluation names None"),
        ([Commit((), [1])], "what JSON holds"),
    ],
)
def test_a_request_that_cannot_be_is_refused_before_it_is_made(requests: list[Any], said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        carried_out(Execution(program(*requests), None), ones)


def test_what_is_no_generator_is_no_program() -> None:
    with pytest.raises(ProgramError, match="generator function; found one that returns list"):
        Execution(lambda v, settings, state: [v.evaluate(v.x, v.x)], None)  # type: ignore[arg-type,return-value]


def nonsense(chance: random.Random) -> Any:
    """A request, most often with something in it that cannot be."""
    name = lambda: chance.choice(["x", "g", "t", "t", "u", ACCUMULATOR, "", 7, None])  # noqa: E731
    operand = lambda: tuple(name() for _ in range(chance.choice([1, 1, 2, 2, 0, 3])))  # noqa: E731
    number = lambda: chance.choice([1.0, -0.5, 0.0, math.nan, math.inf, 10**400, "1", 3])  # noqa: E731
    commands = [
        chance.choice(
            [
                Set(name(), tuple((number(), name()) for _ in range(chance.choice([0, 1, 2, 70])))),
                Apply(name(), chance.choice([*OPERANDS, "exp"]), tuple(operand() for _ in range(chance.randrange(4)))),
                Reduce(chance.choice([*OPERANDS, ""]), tuple(operand() for _ in range(chance.randrange(4)))),
                chance.choice([None, "set", (), b""]),
            ]
        )
        for _ in range(chance.choice([0, 1, 1, 1, 2]))
    ]
    state = {"a": chance.choice([1, 1.5, math.nan, None, "b", [1], (1,), {1: 2}, object(), b"c"])}
    return chance.choice(
        [Evaluate(name(), name()), Round(tuple(commands)), Commit(tuple(commands), state), Round(commands), None]
    )


def test_fuzzed_programs_are_carried_out_or_refused_with_nothing_changed() -> None:
    refused = 0
    for seed in range(4000):
        request = nonsense(random.Random(seed))

        def run(v: Vectors, _: Any, __: State, request: Any = request) -> Iterator[Any]:
            v.kept("g"), v.scratch("t")
            yield v.round(Vector("t").set(v.x))
            yield request
            return "done"

        local = LocalVectors(lambda x: (1.0, x), np.ones(3))
        try:
            assert local.run(run, None).stop_reason == "done"
        except ProgramError:
            refused += 1
            assert {name: values.tolist() for name, values in local.vectors.items()} == {
                "x": [1, 1, 1], "g": [0, 0, 0], "t": [1, 1, 1]
            }, seed  # fmt: skip
    assert 1000 < refused < 3900
