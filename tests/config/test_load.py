"""What an experiment file may say, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from adamctl.config.check import show, structure_problems
from adamctl.config.conflicts import cross_problems
from adamctl.config.data import DataConfig
from adamctl.config.experiment import Experiment, TrainConfig
from adamctl.config.load import load_experiment, parse_setting
from adamctl.config.resolved import read_resolved, write_resolved
from adamctl.errors import ConfigurationError
from adamctl.model.description import Model, Softmax

GOOD = """\
name = "small"
[data]
format = "idx"
source = "mnist"
[model]
input = [28, 28, 1]
[[model.layers]]
type = "conv2d"
filters = 10
kernel = 5
[[model.layers]]
type = "softmax"
units = 10
[optimizer]
type = "sgd"
lr = 0.05
[train]
passes = 3
batch = 32
[cluster]
workers = 2
"""


def write(folder: Path, text: str = GOOD) -> Path:
    path = folder / "exp.toml"
    path.write_text(text)
    return path


def refusal(folder: Path, old: str, new: str) -> str:
    assert old in GOOD
    path = write(folder, GOOD.replace(old, new, 1))
    with pytest.raises(ConfigurationError) as caught:
        load_experiment(path)
    return str(caught.value).replace(str(folder) + "/", "")


def test_a_good_file(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path)).experiment
    assert (experiment.name, experiment.train.passes, experiment.cluster.workers) == ("small", 3, 2)
    assert (experiment.train.n_fetch, experiment.train.steps_per_fetch) == ("auto", 1)
    assert len(experiment.model.layers) == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("batch = 32", "bacth = 32", 'exp.toml:19: train.bacth: unknown key. Did you mean "batch"?'),
        ("batch = 32", "epochs = 32", 'exp.toml:19: train.epochs: unknown key. Did you mean "passes"?'),
        (
            "batch = 32",
            "learning_rate = 0.1",
            'exp.toml:19: train.learning_rate: unknown key. Did you mean "optimizer.lr"?',
        ),
        ("lr = 0.05", "learning_rate = 0.05", 'optimizer.learning_rate: unknown key. Did you mean "lr"?'),
        ("batch = 32", "lr = 0.1", 'exp.toml:19: train.lr: unknown key. Did you mean "optimizer.lr"?'),
        ("[train]", "[trian]", 'exp.toml:17: trian: unknown key. Did you mean "train"?'),
        ("batch = 32", 'batch = "32"', 'found "32"; expected a whole number. Write it without quotes: 32.'),
        ("batch = 32", "batch = 1.5", "train.batch: found 1.5; expected a whole number."),
        ("batch = 32", "batch = true", "train.batch: found true; expected a whole number."),
        ("batch = 32", "batch = 0", "train.batch: found 0; expected a whole number, at least 1."),
        ("batch = 32", "pass_fraction = 0.0", "found 0.0; expected a number, above 0 and at most 1."),
        ("batch = 32", "pass_fraction = 1.5", "exp.toml:19: train.pass_fraction: found 1.5"),
        ("lr = 0.05", "lr = nan", "exp.toml:16: optimizer.lr: found nan; expected a number."),
        ("lr = 0.05", "beta1 = 1.0", "optimizer.beta1: found 1.0; expected a number, at least 0 and below 1."),
        ("lr = 0.05", "beta2 = -0.5", "optimizer.beta2: found -0.5; expected a number, at least 0 and below 1."),
        ("lr = 0.05", "decay = 1.5", "optimizer.decay: found 1.5; expected a number, at least 0 and below 1."),
        ("lr = 0.05", "epsilon = 0.0", "optimizer.epsilon: found 0.0; expected a number, above 0."),
        ("lr = 0.05", "nesterov = 1", "optimizer.nesterov: found 1; expected true or false."),
        (
            "lr = 0.05",
            "nesterov = true",
            'optimizer.nesterov: found true with type = "sgd"; expected "momentum", or leave',
        ),
        (
            "lr = 0.05",
            "momentum = 0.9",
            'optimizer.momentum: found 0.9 with type = "sgd"; expected "momentum", or leave',
        ),
        (
            "lr = 0.05",
            "epsilon = 1e-6",
            'epsilon: found 1e-06 with type = "sgd"; expected "rmsprop" or "adam", or leave',
        ),
        (
            '"sgd"',
            '"adagard"',
            '"owlqn". Did you mean "adagrad"?',
        ),
        ('"conv2d"', '"conv3d"', 'exp.toml:8: model.layers[0].type: found "conv3d"; expected one of "conv2d"'),
        ('type = "conv2d"\n', "", "exp.toml:7: model.layers[0].type: missing; expected one of"),
        ("kernel = 5", "kernel = [5, 5, 5]", "expected a whole number or [a whole number, a whole number]"),
        ("kernel = 5", "kernel = 50", "exp.toml:7: model.layers[0]: a window of 50x50 does not fit"),
        ("kernel = 5\n", "", "model.layers[0].kernel: missing; a conv2d layer needs kernel"),
        ("units = 10", "units = -1", "exp.toml:11: model.layers[1]: units must be at least 1; found -1"),
        ("units = 10", "unist = 10", 'Did you mean "units"?'),
        ("input = [28, 28, 1]", "input = [28, 28]", "exp.toml:6: model.input: expected [features] or"),
        ("input = [28, 28, 1]", "input = 784", "expected a list of whole numbers. Write it in brackets: [784]."),
        ("input = [28, 28, 1]", 'input = "28"', 'found "28"; expected a list of whole numbers.'),
        ('"softmax"', '"dense"', "model.loss: cross_entropy needs softmax as the last layer"),
        ('name = "small"', 'name = "../up"', 'exp.toml:1: name: found "../up"; expected letters, digits'),
        ('name = "small"', "", "exp.toml: name: missing; an experiment needs name = text in quotes."),
        ('name = "small"', "name = = 1", "exp.toml:1: not valid TOML"),
        ('"idx"', '"digits"', "exp.toml:3: data.format: found"),
        ('source = "mnist"\n', "", 'data.source: format = "idx" needs a path'),
        (
            "workers = 2",
            "replication = 2",
            "exp.toml:21: cluster.replication: found 2 copies on 1 server; each needs a server of its own; set",
        ),
        (
            "workers = 2",
            "ps = 5\nreplication = 4",
            "found 4; expected a whole number, from 1 to 3.",
        ),
        ("workers = 2", 'acks = "replicated"', 'found "replicated" with replication = 1; set replication to 2 or 3'),
        ("workers = 2", 'acks = "replicate"', 'Did you mean "replicated"?'),
        ("workers = 2", "ps = 3\nreplication = 3\nmin_in_sync = 4", "cluster.min_in_sync: found 4 of 3; expected at"),
        ("workers = 2", "min_in_sync = 0", "cluster.min_in_sync: found 0; expected a whole number or"),
        ("batch = 32", "max_staleness = 0", "train.max_staleness: found 0; expected a whole number, at least 1"),
        ("batch = 32", 'consistency = "sink"', 'train.consistency: found "sink"'),
        (
            "batch = 32",
            'consistency = "sync"\nn_push = 4',
            'train.n_push: found 4 with consistency = "sync"; set it to 1: every step ends with a push',
        ),
        ("batch = 32", 'consistency = "sync"\nn_fetch = 2', "train.n_fetch: found 2"),
        (
            "batch = 32",
            'consistency = "sync"\nmax_staleness = 3',
            "replicas in step are never ahead of each other; leave one of",
        ),
        ("batch = 32", 'consistency = "sync"\nprotocol = "factors"', 'train.protocol: found "factors"'),
        ("batch = 32", 'consistency = "sync"\nlocal_lr = 0.1', "train.local_lr: found 0.1"),
        ("batch = 32", 'consistency = "sync"\nwarmstart_steps = 9', "train.warmstart_steps: found 9"),
        (
            "batch = 32\n[cluster]",
            'consistency = "sync"\n[cluster]\nthreads = 2',
            'set it to 1 or "auto": a replica in step has one thread; for more threads raise cluster.workers',
        ),
        ("workers = 2", "workers = 2\nps = 0", "found 2 with cluster.ps = 0, which is 2 replicas"),
        ("workers = 2", "ps = 0\nreplication = 2", "found 2 copies with cluster.ps = 0; servers keep copies"),
        ("workers = 2", 'ps = 0\npartitions = "auto"', 'found "auto" with cluster.ps = 0; say how many'),
        ("workers = 2", 'ps = 0\nacks = "durable"', 'found "durable" with cluster.ps = 0; servers acknowledge'),
        ("workers = 2", 'acks = "durable"\nstore = "none"', 'found "durable" with store = "none"'),
        ("workers = 2", 'threads = "auot"', 'expected a whole number or "auto". Did you mean "auto"?'),
        ("batch = 32", 'evaluate_on = "validation"', "data.validation is 0; set data.validation"),
        ('"mnist"', '"mnist"\nsampling = "balance"', '"balanced", "weights" or a table. Did you mean "balanced"?'),
        ("batch = 32", "class_weights = [1, -1]", "found -1.0; expected numbers of at least 0 for classes"),
        ("batch = 32", "target = 1.5", "found 1.5; expected a number, above 0 and at most 1: a share of the examples"),
        ("[data]", '[data]\ntargets = "inputs"', 'found "inputs", but model.loss = "cross_entropy" compares'),
        ("batch = 32", "class_weights = []", "found no numbers; expected numbers of at least 0"),
        ("batch = 32", 'class_weights = ["a"]', 'expected one of "balanced", "none" or a list of numbers or a table.'),
        ('"mnist"', '"mnist"\nsampling = { 3 = "x" }', 'data.sampling.3: found "x"; expected a number.'),
        ('"mnist"', '"mnist"\ntranslate = -1', "data.translate: found -1; expected a whole number, at least 0."),
        ('"mnist"', '"mnist"\ntranslate = 14', "data.translate: found 14; expected less than half of the images'"),
    ],
)
def test_one_clear_message(tmp_path: Path, old: str, new: str, expected: str) -> None:
    message = refusal(tmp_path, old, new)
    assert expected in message
    assert message.startswith("exp.toml")


def test_an_experiment_without_layers_is_told_how_to_write_one(tmp_path: Path) -> None:
    start, stop = GOOD.index("[[model.layers]]"), GOOD.index("[optimizer]")
    with pytest.raises(
        ConfigurationError, match=r"model.layers: missing; model needs at least one \[\[model.layers\]\]\."
    ):
        load_experiment(write(tmp_path, GOOD[:start] + GOOD[stop:]))


def test_a_byte_order_mark_is_no_part_of_the_experiment(tmp_path: Path) -> None:
    assert load_experiment(write(tmp_path, "\ufeff" + GOOD)).experiment.name == "small"
    with pytest.raises(ConfigurationError, match=r"exp.toml:2: dato: unknown key"):
        load_experiment(write(tmp_path, "\ufeff" + GOOD.replace("[data]", "[dato]")))


def test_a_setting_that_is_at_its_default_is_refused_only_where_it_was_meant(tmp_path: Path) -> None:
    """A run folder's experiment has all settings, and `--set optimizer.type` is tried on files for another type."""
    whole = write_resolved(load_experiment(write(tmp_path)).experiment, tmp_path)
    assert "momentum = 0.9" in whole.read_text() and read_resolved(whole).optimizer.type == "sgd"
    path = write(tmp_path, GOOD.replace('type = "sgd"', 'type = "momentum"\nmomentum = 0.9'))
    assert load_experiment(path, settings=[parse_setting("optimizer.type=adam")]).experiment.optimizer.type == "adam"
    both = [parse_setting("optimizer.type=adam"), parse_setting("optimizer.momentum=0.9")]
    with pytest.raises(ConfigurationError, match=r'momentum: found 0.9 with type = "adam"; expected "momentum"'):
        load_experiment(path, settings=both)


def test_classes_are_balanced_once() -> None:
    data, train = DataConfig(sampling="balanced"), TrainConfig(class_weights="balanced")
    (problem,) = cross_problems(Experiment(name="twice", model=Model((64,), (Softmax(2),)), data=data, train=train))
    assert str(problem).startswith('train.class_weights: found "balanced" with data.sampling = "balanced"; choose one')


def test_all_problems_are_listed_at_once(tmp_path: Path) -> None:
    message = refusal(tmp_path, "passes = 3\nbatch = 32", "passes = 0\nbatch = 0")
    assert [line.split(": ")[1] for line in message.splitlines()] == ["train.passes", "train.batch"]


def test_a_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ConfigurationError, match=r'no such experiment file\. Did you mean ".*exp\.toml"'):
        load_experiment(tmp_path / "epx.toml")


def test_a_folder_and_a_binary_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_experiment(tmp_path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load_experiment(binary)


def test_precedence_flag_environment_file_default(tmp_path: Path) -> None:
    environment = {"ADAMCTL_OPTIMIZER__LR": "0.2", "ADAMCTL_TRAIN__BATCH": "64", "ADAMCTL_CONTROLLER": "tcp://h:1"}
    loaded = load_experiment(write(tmp_path), settings=[parse_setting("optimizer.lr=0.3")], environment=environment)
    assert loaded.experiment.optimizer.lr == 0.3
    assert loaded.experiment.train.batch == 64
    kinds = {key: loaded.origins[key].kind for key in ("optimizer.lr", "train.batch", "train.passes", "train.n_push")}
    assert kinds == {
        "optimizer.lr": "flag",
        "train.batch": "environment",
        "train.passes": "file",
        "train.n_push": "default",
    }
    assert loaded.origins["train.passes"].place.endswith("exp.toml:18")


def test_messages_about_flags_and_variables_name_them(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^--set train\.bacth: train\.bacth: unknown key\. Did you mean"):
        load_experiment(path, settings=[parse_setting("train.bacth=3")])
    with pytest.raises(ConfigurationError, match=r"^ADAMCTL_TRAIN__BATCH: train\.batch: found \"many\""):
        load_experiment(path, environment={"ADAMCTL_TRAIN__BATCH": "many"})
    with pytest.raises(ConfigurationError, match="expected KEY=VALUE"):
        parse_setting("optimizer.lr")


def test_settings_reach_into_layers(tmp_path: Path) -> None:
    loaded = load_experiment(write(tmp_path), settings=[parse_setting("model.layers.0.filters=4")])
    assert loaded.experiment.model.layers[0].filters == 4  # type: ignore[union-attr]
    for wrong in ("7", "-1", "²"):
        with pytest.raises(ConfigurationError, match=f"expected a position from 0 to 1; found {wrong}"):
            load_experiment(write(tmp_path), settings=[parse_setting(f"model.layers.{wrong}.filters=4")])


def test_text_that_looks_like_a_number_stays_text_where_text_is_expected(tmp_path: Path) -> None:
    assert load_experiment(write(tmp_path), settings=[parse_setting("name=2014")]).experiment.name == "2014"


@pytest.mark.parametrize("number", ["9" * 309, "9" * 5000, "0x" + "f" * 5000], ids=len)
@pytest.mark.parametrize("key", ["optimizer.lr", "seed"])
def test_a_number_that_is_too_long_to_be_one_is_refused(tmp_path: Path, key: str, number: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"--set {key}: {key}: found .*\.\.\.; expected a"):
        load_experiment(write(tmp_path), settings=[parse_setting(f"{key}={number}")])
    with pytest.raises(ConfigurationError, match=r"exp\.toml.*: found .*|expected numbers of at most 4300 digits"):
        load_experiment(write(tmp_path, GOOD.replace("lr = 0.05", f"lr = {number}")))


def test_search_folders_flag_then_environment_then_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD.replace("[model]", 'search = ["/c"]\n[model]'))
    loaded = load_experiment(path, search=["/a"], environment={"ADAMCTL_DATA": "/b:/a"})
    assert loaded.experiment.data.search == ("/a", "/b", "/c")
    assert str(loaded.origins["data.search"]) == "flag --data"


def test_a_path_is_found_beside_the_experiment(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "data.npz").touch()
    path = write(tmp_path, GOOD.replace('"mnist"', '"./sub/data.npz"').replace('"idx"', '"npz"'))
    assert load_experiment(path).experiment.data.source == str((tmp_path / "sub" / "data.npz").resolve())


def test_nothing_but_the_environment_given_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAMCTL_TRAIN__BATCH", "64")
    assert load_experiment(write(tmp_path)).experiment.train.batch == 32


def test_values_are_shown_as_toml_writes_them() -> None:
    assert [show(value) for value in (True, "a", [1, "b"], 0.5)] == ["true", '"a"', '[1, "b"]', "0.5"]


def test_every_default_is_within_its_range() -> None:
    values = {"name": "x", "model": {"input": [1], "layers": [{"type": "softmax", "units": 2}]}}
    assert structure_problems(values) == []
    assert Experiment.__struct_fields__[0] == "name"
