"""What an experiment with a batch algorithm cannot have, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from adamctl.config.algorithms import BUILT_IN, RULES
from adamctl.config.batch_conflicts import FIXED_STEPS, REFUSED
from adamctl.config.conflicts import RULES_READING, cross_problems, experiment_problems
from adamctl.config.experiment import Experiment, OptimizerConfig
from adamctl.errors import ConfigurationError
from adamctl.model.description import Dense, Dropout, Model, Softmax
from adamctl.optimizers.registry import find
from tests.config.small_network import load
from tests.optimizers import third_party

CASES = {
    "optimizer.lr=0.1": "leave it out: a line search finds the length",
    'optimizer.schedule.type="cosine"': "leave it out: a line search",
    "optimizer.clip_norm=1.0": "leave it out: a clipped gradient is not that of the loss",
    "data.on_error=skip": "leave it out: losses must be of the same examples",
    "data.sampling=balanced": "leave it out: each pass would be of other examples",
    "data.translate=1": "set it to 0: a line search compares losses, which must be of the same images",
    "data.augment.rotate=10": "leave it out: a line search compares losses, which must be of the same images",
    'train.consistency="sync"': "leave it out: all workers evaluate at the same parameters",
    "train.max_staleness=3": "so none is ahead",
    "train.n_fetch=2": "fetched once for each evaluation",
    "train.n_push=2": "each bundle is pushed once",
    "train.local_lr=0.1": "workers evaluate at the parameters",
    "train.warmstart_steps=5": "set it to 0; to begin with Downpour, .* set train.warmstart_from",
    'train.protocol="factors"': "gradients are added up, which factors cannot be",
    'train.wire_push="bfloat16"': "must not depend on how a batch is cut",
    'train.wire_pull="float16"': "the loss at the parameters that it chose",
    "train.pass_fraction=0.5": "an evaluation needs the whole batch",
    "cluster.ps=0": "set it to 1 or more: parameter servers hold",
}


def test_every_key_is_tried() -> None:
    tried = {text.partition("=")[0].removesuffix(".type").removesuffix(".rotate") for text in CASES}
    assert tried == {*REFUSED, *FIXED_STEPS, "cluster.ps"}


@pytest.mark.parametrize("setting", CASES)
def test_what_a_line_search_cannot_have_is_refused_and_rules_take_it(tmp_path: Path, setting: str) -> None:
    key = setting.partition("=")[0].removesuffix(".type").removesuffix(".rotate")
    with pytest.raises(ConfigurationError, match=rf'{key}: found .* with type = "cg"; .*{CASES[setting]}'):
        load(tmp_path, "optimizer.type=cg", setting)
    load(tmp_path, "optimizer.type=momentum", setting)


def test_dropout_is_named_by_its_layer() -> None:
    model = Model((4,), (Dense(4), Dropout(0.5), Softmax(2)))
    said = [str(one) for one in cross_problems(Experiment(name="x", model=model, optimizer=OptimizerConfig(type="cg")))]
    assert len(said) == 1
    assert said[0].startswith('model.layers[1]: found dropout with type = "cg"; take the layer out and set')
    assert not cross_problems(Experiment(name="x", model=model))


@pytest.mark.parametrize("name", [*RULES, *BUILT_IN])
def test_a_key_is_taken_where_it_is_read_and_refused_elsewhere(tmp_path: Path, name: str) -> None:
    values = {"nesterov": "true", "batch": "100", "history": "5", "evaluations_max": "5"}
    for key, types in RULES_READING.items():
        settings = [f"optimizer.type={name}", f"optimizer.{key}={values.get(key, '0.125')}"]
        settings += ["optimizer.l1=0.1"] if name == "owlqn" and key != "l1" else []
        if name in types:
            assert str(getattr(load(tmp_path, *settings).optimizer, key)).lower() == values.get(key, "0.125")
        else:
            with pytest.raises(ConfigurationError, match=rf'optimizer.{key}: .* with type = "{name}"; expected "'):
                load(tmp_path, *settings)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_keys_that_an_algorithm_reads_are_those_of_its_settings(name: str) -> None:
    read = {key for key, types in RULES_READING.items() if name in types} - {"batch"}
    assert read == set(find(name).settings.__struct_fields__)


@pytest.mark.parametrize("name", BUILT_IN)
def test_defaults_are_the_same_wherever_an_algorithm_is_used(name: str) -> None:
    for field in msgspec.structs.fields(find(name).settings):
        if field.name != "l1":
            assert field.default == getattr(OptimizerConfig(), field.name)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("history=32", "found 32; expected a whole number, from 1 to 31, since"),
        ("history=0", "found 0; expected a whole number, from 1 to 31"),
        ("batch=0", 'found 0; expected a whole number or "full", at least 1'),
        ("batch=all", 'found "all"; expected a whole number or "full"'),
        ("gradient_tolerance=-1.0", "at least 0"),
        ("settings.step=1", "found step .* leave the table out: it is for algorithms of other packages"),
        ("type=3", "found 3; expected text in quotes"),
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, setting: str, said: str) -> None:
    key = setting.partition("=")[0].partition(".")[0]
    with pytest.raises(ConfigurationError, match=rf"optimizer\.{key}: .*{said}"):
        load(tmp_path, "optimizer.type=lbfgs", f"optimizer.{setting}")


def test_an_l1_term_must_be_given_where_it_is_the_purpose(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'optimizer\.l1: .* for example 1e-4.*; without one use "lbfgs"'):
        load(tmp_path, "optimizer.type=owlqn")
    assert load(tmp_path, "optimizer.type=owlqn", "optimizer.l1=1e-4").optimizer.l1 == 1e-4


def test_another_package_may_read_a_fixed_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    third_party.use(tmp_path, monkeypatch)
    assert load(tmp_path, "optimizer.type=descent", "optimizer.lr=0.5", "optimizer.history=3").optimizer.lr == 0.5
    with pytest.raises(ConfigurationError, match=r"optimizer\.clip_norm"):
        load(tmp_path, "optimizer.type=descent", "optimizer.clip_norm=1.0")


def test_values_given_in_python_are_checked_alike() -> None:
    made = Experiment(name="x", model=Model((4,), (Softmax(2),)), optimizer=OptimizerConfig(type="lbgfs", history=99))
    said = [str(problem) for problem in experiment_problems(made)]
    assert any("optimizer.type" in one and 'Did you mean "lbfgs"?' in one for one in said)
    assert any("optimizer.history: found 99" in one for one in said)


@pytest.mark.parametrize("value", ["nan", "1979-05-27", "[[1]]", "{a = 1}"])
def test_settings_of_another_package_are_plain_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    third_party.use(tmp_path, monkeypatch)
    wanted = r"expected a number, text in quotes, true, false, or a list of these\."
    with pytest.raises(ConfigurationError, match=rf"optimizer\.settings\.step: found .*; {wanted}"):
        load(tmp_path, "optimizer.type=descent", f"optimizer.settings.step={value}")
