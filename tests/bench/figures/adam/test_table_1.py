"""Table 1: which runs it asks for, and what it says of them."""

from __future__ import annotations

import pytest

from adamctl.bench.figures import trained
from adamctl.bench.figures.adam import table_1
from adamctl.bench.figures.adam.table_1 import FREE, IN_STEP, MANY, SEEDS, VARIANTS
from adamctl.bench.figures.choosing import Choice, key_of
from adamctl.bench.figures.figure import Figure
from adamctl.bench.figures.rounds import MissingRoundError, Rounds
from adamctl.bench.figures.runs import Training, example, train
from adamctl.bench.figures.session import FigureSettings, Session
from adamctl.config.load import load_experiment, parse_setting
from adamctl.model.shapes import infer
from tests.bench.figures.fake_trainings import FakeTrainings, TopOne, keep

GAIN = 0.002


def measured(
    monkeypatch: pytest.MonkeyPatch, top1: TopOne, rounds: Rounds | None = None, *, searches: bool = False
) -> tuple[FakeTrainings, Rounds]:
    fake, found = FakeTrainings(top1), Rounds() if rounds is None else rounds
    monkeypatch.setattr(trained, "train_several", fake)
    table_1.measure(Session(FigureSettings(("data",), searches=searches), found))
    return fake, found


def asynchrony_helps(key: str, training: Training) -> float:
    """With padding and dropout runs are best; seeds differ by much more than the modes do."""
    is_free = training.settings.get("cluster.ps") != 0
    base = 0.990 + 0.002 * ("same" in key) + 0.001 * ("dropout" in key)
    return base + 0.0004 * training.seed + GAIN * is_free


def said(figure: Figure) -> str:
    return "\n".join(figure.sentences)


def test_both_paddings_with_and_without_dropout_run_free_and_in_step_with_the_same_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake, _ = measured(monkeypatch, asynchrony_helps)
    for variant in VARIANTS:
        for mode in (FREE, IN_STEP):
            seeds = [
                one.seed for key, one in fake.ran.items() if key.startswith(f"{variant.name}/lr-0.15-clip-1/{mode}/")
            ]
            assert seeds == list(SEEDS)
    assert sum(f"/{MANY}/" in key for key in fake.ran) == len(SEEDS)
    assert len(fake.ran) == 9 * len(SEEDS)


def test_runs_in_step_have_one_thread_without_servers_and_go_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, _ = measured(monkeypatch, asynchrony_helps)
    run = fake.ran["same-dropout/lr-0.15-clip-1/in-step/seed-1"]
    experiment = load_experiment(
        run.experiment, settings=[parse_setting(f"{key}={value}") for key, value in run.settings.items()]
    ).experiment
    assert (experiment.cluster.ps, experiment.cluster.workers, experiment.cluster.threads) == (0, 1, 1)
    assert (experiment.train.passes, experiment.optimizer.lr, experiment.optimizer.clip_norm) == (30, 0.15, 1.0)
    assert fake.at_a_time == [1, 2] * len(SEEDS)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_connections_are_those_of_the_shapes(variant: table_1.Variant) -> None:
    settings = [parse_setting(f"{key}={value}") for key, value in variant.settings.items()]
    file = example("mnist_dropout.toml" if variant.has_dropout else "mnist.toml")
    model = load_experiment(file, settings=settings).experiment.model
    assert sum(shape.connections for shape in infer(model)) == variant.connections


def test_a_difference_that_all_seeds_show_is_settled_though_seeds_differ_more(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, asynchrony_helps)
    figure = table_1.figure_of(rounds)
    assert [bar.outcome for bar in figure.bars] == ["met"] * 5
    assert "Does asynchrony help? Yes: +0.200 points" in said(figure)


def test_what_differs_by_chance_is_not_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_chance(key: str, training: Training) -> float:
        is_free = training.settings.get("cluster.ps") != 0
        return 0.99 + (0.002 if is_free == bool(training.seed % 2) else 0.0)

    _, rounds = measured(monkeypatch, by_chance)
    assert "Does asynchrony help? Not settled" in said(table_1.figure_of(rounds))


def test_a_loss_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def worse(key: str, training: Training) -> float:
        return 0.99 - 0.002 * (training.settings.get("cluster.ps") != 0) + 1e-5 * training.seed

    _, rounds = measured(monkeypatch, worse)
    figure = table_1.figure_of(rounds)
    assert "Does asynchrony help? No" in said(figure)
    assert {bar.outcome for bar in figure.bars} == {"missed"}


def test_it_names_what_comes_nearest_to_the_papers_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    def papers(key: str, training: Training) -> float:
        in_step = training.settings.get("cluster.ps") == 0
        if key.startswith("valid-dropout"):
            return 0.9939 if in_step else 0.9963
        return 0.9939  # nearer in step, and farther free

    _, rounds = measured(monkeypatch, papers)
    assert "Nearest to 99.63% against 99.39%: valid, dropout, 99.63% against 99.39%." in said(table_1.figure_of(rounds))


def test_the_last_evaluation_counts_and_the_best_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, lambda key, training: 0.99)
    (table,) = table_1.figure_of(rounds).tables
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert (row["mean of the last, %"], row["best of the best"], row["seeds"]) == ("99.00", "99.10", "5")
    assert [row[3] or row[5] for row in table.rows[-3:]] == ["99.63", "99.39", "99.55"]


def test_only_seeds_that_both_modes_have_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    _, whole = measured(monkeypatch, asynchrony_helps)
    rounds = Rounds()
    kept = {key: value for key, value in whole.to_json()["rounds"].items() if not key.endswith(f"{IN_STEP}/seed-5")}
    for key, value in kept.items():
        keep(rounds, key, value)
    (table,) = table_1.figure_of(rounds).tables
    counts = {(row[0], row[2]): row[6] for row in table.rows[:9]}
    assert counts["valid, no dropout", "free, 2 threads"] == counts["valid, no dropout", "in step, 1 thread"] == "4"


def test_a_search_looks_at_a_validation_part_and_its_rate_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    best = Choice(0.45, 1.0)

    def top1(key: str, training: Training) -> float:
        lr, clip_norm = (training.settings[f"optimizer.{name}"] for name in ("lr", "clip_norm"))
        return 0.95 if Choice(lr, clip_norm) == best else 0.9

    fake, rounds = measured(monkeypatch, top1, searches=True)
    searched = [one for key, one in fake.ran.items() if key.startswith("search/")]
    assert len(searched) == 6 * 2 * len(VARIANTS)
    assert {(one.settings["data.validation"], one.seed) for one in searched} == {(0.1, 0)}
    assert all(one.may_diverge == (one in searched) for one in fake.ran.values())
    assert all("data.validation" not in one.settings for key, one in fake.ran.items() if "seed-" in key)
    assert "valid/lr-0.45-clip-1/free/seed-1" in rounds
    words = said(table_1.figure_of(rounds))
    assert words.count("chosen by --search") == len(VARIANTS) and table_1.FIXED_SAID not in words


def test_a_search_that_finds_what_is_fixed_has_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def top1(key: str, training: Training) -> float:
        return 0.95 if training.settings["optimizer.lr"] == table_1.FIXED.lr else 0.9

    _, rounds = measured(monkeypatch, top1, searches=True)
    assert said(table_1.figure_of(rounds)).count("chosen by --search") == len(VARIANTS)
    _, rounds = measured(monkeypatch, top1)
    assert table_1.FIXED_SAID in said(table_1.figure_of(rounds))


def test_rounds_of_another_rate_are_not_taken_for_those_of_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, asynchrony_helps)
    for choice in table_1.TRIED:
        for mode in (FREE, IN_STEP):
            better = 0.9 + 0.05 * (choice.lr == 0.05)
            keep(rounds, key_of("valid", choice.name, mode), {"result": {"top1": better}})
    with pytest.raises(MissingRoundError, match=r"valid/lr-0\.05"):
        table_1.figure_of(rounds)


def test_what_is_there_is_not_trained_again(monkeypatch: pytest.MonkeyPatch) -> None:
    _, rounds = measured(monkeypatch, asynchrony_helps)
    fake, _ = measured(monkeypatch, asynchrony_helps, rounds)
    assert not fake.ran


@pytest.mark.slow
def test_one_thread_without_servers_has_the_bits_of_one_worker_in_step() -> None:
    same = {"optimizer.type": "sgd", "optimizer.clip_norm": 1.0, "train.passes": 2, "train.evaluate_every": 1}
    in_step = {"train.consistency": "sync", "train.n_push": 1, "train.n_fetch": 1, "cluster.threads": 1}
    losses = [
        [evaluation["loss"] for evaluation in train(Training(example("digits.toml"), {**same, **mode}))["evaluations"]]
        for mode in (in_step, table_1.MODES[IN_STEP])
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) >= 2
