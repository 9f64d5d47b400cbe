"""Trainings of DistBelief's methods on spoken digits: warm starts, runs on machines, the search of rates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import structs

from adamctl.bench.control_groups import ControlGroups
from adamctl.bench.figures.choosing import SEED, VALIDATION, chosen, is_searched, key_of
from adamctl.bench.figures.curves import Curve, curve_of, from_json, to_json
from adamctl.bench.figures.distbelief.speech_methods import (
    BATCH,
    EXAMPLE,
    LIMIT_S,
    MACHINE_CORES,
    SEARCHED,
    SERVER_CORES,
    SGD,
    TRIED,
    WARM,
    Method,
    experiment_of,
)
from adamctl.bench.figures.machines import BESIDE_CORES, core_shares
from adamctl.bench.figures.rounds import Rounds
from adamctl.bench.figures.runs import Training, example, train
from adamctl.bench.figures.session import Session
from adamctl.config.experiment import Experiment
from adamctl.config.load import load_experiment
from adamctl.config.resolved import to_toml
from adamctl.errors import ConfigurationError

LIMIT_QUICK_S = 30.0
LEFT_OUT_QUICK = 0.8
"""Of the training examples, so that a pass is short."""
SEARCH_PASSES = 4


@dataclass(frozen=True)
class Found:
    """A run, as a round keeps it.

    Attributes:
        rate: it was run with.
        examples_per_s: trained.
        gradient_age: median, in pushes; None: it has none.
    """

    curve: Curve
    rate: float | None
    examples_per_s: float
    gradient_age: int | None

    def to_json(self) -> dict[str, Any]:
        rest = {"rate": self.rate, "examples_per_s": self.examples_per_s, "gradient_age": self.gradient_age}
        return {**to_json(self.curve), **rest}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Found:
        return cls(from_json(value), value["rate"], value["examples_per_s"], value["gradient_age"])


class SpeechRuns:
    """Runs of one figure; `speech_runs` makes it.

    Attributes:
        limit_s: of training, of each run, its warm start included.
    """

    def __init__(self, session: Session, groups: ControlGroups, folder: Path) -> None:
        """`folder`: for files of experiments and checkpoints, as long as it measures."""
        self._session, self._groups, self._folder = session, groups, folder
        self._data = session.settings.data
        base = load_experiment(example(EXAMPLE), search=self._data).experiment
        left_out = structs.replace(base.data, validation=LEFT_OUT_QUICK)
        self._base = session.sized(base, structs.replace(base, data=left_out))
        self.limit_s = session.sized(LIMIT_S, LIMIT_QUICK_S)

    def methods(self, methods: Sequence[Method]) -> tuple[Method, ...]:
        """Returns methods with their rates: those of a search, if one was asked for or has been made, or else fixed."""
        return tuple(method if method.rate is None else self._searched(method, method.rate) for method in methods)

    def take(self, method: Method, seed: int, evaluate_every: float, target: float | None = None) -> Found:
        """Returns the run of a method with a seed, which is measured if it is not there; its warm start likewise.

        Raises:
            ConfigurationError: what is there has another rate.
        """
        warm_s = self._warm_s(seed) if method.begins_warm else 0.0
        key = f"{method.name}/seed-{seed}"
        run = partial(self._run, method, seed, evaluate_every, warm_s, target)
        found = Found.from_json(self._session.take(key, lambda: run().to_json()))
        if found.rate != method.rate:
            raise ConfigurationError(
                f"{key}: expected a run with the rate {method.rate:g}; found one with {found.rate:g}, of another "
                "version or another search: give another --folder"
            )
        return found

    # --- runs ---------------------------------------------------------------------------------------------------------

    def _run(self, method: Method, seed: int, evaluate_every: float, warm_s: float, target: float | None) -> Found:
        start: dict[str, Any] = {"warmstart_from": str(self._checkpoint(seed))} if method.begins_warm else {}
        file = self._file(method, evaluate_every, None, target=target, evaluate_on="test", **start)
        seconds = max(self.limit_s - warm_s, 1.0)
        training = Training(
            file, seed=seed, machines=method.machines, data=self._data, seconds_most=seconds, may_diverge=True
        )
        return _found(train(training, self._groups), method, warm_s, self.limit_s)

    def _warm_s(self, seed: int) -> float:
        """Returns how long the pass of plain SGD took, on one machine; its checkpoint is kept."""
        return float(self._session.take(f"{WARM}/seed-{seed}", lambda: self._warm_up(seed, self._groups))["seconds"])

    def _warm_up(self, seed: int, groups: ControlGroups | None, base: Experiment | None = None) -> dict[str, Any]:
        """Trains one pass by plain SGD; `groups`: None: on all of this machine."""
        (sgd,) = (SGD,) if base is not None else self.methods([SGD])
        split = "test" if base is None else "auto"
        file = self._file(sgd, 1.0, base, passes=1, evaluate_on=split)
        machines = None if groups is None else sgd.machines
        result = train(Training(file, seed=seed, machines=machines, data=self._data, kept=self._kept(seed)), groups)
        return {"seconds": result["result"]["train_seconds"], "top1": result["result"]["top1"]}

    def _kept(self, seed: int) -> Path:
        return self._folder / f"{WARM}-{seed}"

    def _checkpoint(self, seed: int, base: Experiment | None = None) -> Path:
        """Returns the run of a warm start; where a figure goes on it is made once more, however long that takes."""
        if not self._kept(seed).is_dir():
            self._session.progress(f"{WARM}/seed-{seed}: its pass, for the checkpoint")
            self._warm_up(seed, None, base)
        return self._kept(seed)

    def _file(self, method: Method, evaluate_every: float, base: Experiment | None = None, **train: Any) -> Path:
        path = self._folder / "experiment.toml"
        experiment = experiment_of(base or self._base, method, evaluate_every, **train)
        path.write_text(to_toml(experiment), encoding="utf-8")
        return path

    # --- the search of rates ------------------------------------------------------------------------------------------

    def _searched(self, method: Method, fixed: float) -> Method:
        """Returns a method with the best of its three rates, or the fixed one if these were not searched.

        Accuracy over passes does not depend on speed, so machines have no shares of cores here.
        """
        tried = tried_of(method.name)
        if self._session.settings.searches:
            for rate, (key,) in tried.items():
                self._session.take(key, partial(self._try, method.with_rate(rate)))
        return method.with_rate(chosen(self._session.rounds, tried, fixed))

    def _try(self, method: Method) -> dict[str, Any]:
        """Returns what a run of a search has come to on the validation part; nothing if it diverged."""
        held_out = structs.replace(self._base, data=structs.replace(self._base.data, validation=VALIDATION))
        passes = self._session.sized(SEARCH_PASSES, 1)
        start = {"warmstart_from": str(self._checkpoint(SEED, held_out))} if method.begins_warm else {}
        file = self._file(method, float(passes), held_out, passes=passes, **start)
        found = train(Training(file, seed=SEED, data=self._data, may_diverge=True))
        return {"result": found["result"]}


def tried_of(method: str) -> dict[float, list[str]]:
    """Returns the rates that a search tries of a method, with the key of its run."""
    return {rate: [key_of(method, f"lr-{rate:g}")] for rate in TRIED[method]}


def runs_of(rounds: Rounds, method: Method) -> list[Found]:
    """Returns the runs of a method, by seed. Raises MissingRoundError: there are none."""
    return [Found.from_json(one) for one in rounds.all_of(method.name, "seed-1")]


@contextmanager
def speech_runs(session: Session) -> Iterator[SpeechRuns]:
    """Yields what runs methods on machines. Raises ConfigurationError: control groups cannot be made here."""
    with core_shares() as groups, TemporaryDirectory(prefix="adamctl-figures-") as folder:
        yield SpeechRuns(session, groups, Path(folder))


def _found(trained: Mapping[str, Any], method: Method, warm_s: float, limit_s: float) -> Found:
    last = trained["progress"][-1] if trained["progress"] else {}
    curve = curve_of(trained, warm_s, limit_s, trained["ended"])
    return Found(curve, method.rate, last.get("images_per_s") or 0.0, last.get("gradient_age_p50"))


def what_was_emulated(rounds: Rounds) -> tuple[str, ...]:
    """Returns what figures 4 and 5 have in common, in words."""
    warm = [value["seconds"] for value in rounds.under(WARM)]
    searched = [name for name in TRIED if is_searched(rounds, tried_of(name))]
    here = f"; those of {', '.join(searched)} by this run" if searched else ""
    return (
        f"Machines: of {MACHINE_CORES:g} core, a replica each, and one parameter server of {SERVER_CORES:g} core; data "
        f"server, coordinator and controller share {BESIDE_CORES:g}. TCP on loopback, links without a limit.",
        "Data: spoken digits (FSDD), ten classes in place of 8192 states; recordings 0 to 4 are the test part. "
        "Network: four layers of 256 rectified units, about 0.3 million parameters, in place of 42 million; batches "
        f"of {BATCH}, n_push = n_fetch = 1, no schedule.",
        f"All but plain SGD begin with one pass of it by the same seed, which took {_range(warm)} s and is added to "
        "their time. Of several replicas one evaluates while the others train; of one, and under L-BFGS, evaluations "
        "take no time.",
        f"Rates: of three a factor of three apart, by the last accuracy after {SEARCH_PASSES} passes on a validation "
        f"part of {VALIDATION:.0%}, seed {SEED} (chosen on {SEARCHED}{here}); L-BFGS needs none.",
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f} to {max(values):.0f}" if values else "-"
