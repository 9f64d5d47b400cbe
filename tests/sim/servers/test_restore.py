"""A backup is restored onto new controllers under load: nothing goes back, and planted faults are found."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
import pytest

from adamctl.roles.controller.core.service import backup, commands
from adamctl.roles.controller.core.service.backup import Backup
from adamctl.roles.controller.core.service.state import KeyState, Snapshot
from tests.sim.engine import ViolationError
from tests.sim.servers.restore_scenario import RestoreScenario

QUICK_SEEDS = range(1, 9)
SLOW_SEEDS = range(1, 501)
FOUND_WITHIN = range(1, 41)
Restored = tuple[Snapshot, tuple[str, ...]]


def found(seeds: Iterable[int]) -> tuple[int, str]:
    """Returns the first seed at which something is violated, and what; 0 if there is none."""
    for seed in seeds:
        try:
            RestoreScenario(seed).run()
        except ViolationError as violation:
            return seed, str(violation)
    return 0, ""


def keeps(**of_backup: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Numbers of the restored state that are those of the backup, not raised."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        restored = commands.restored

        def unraised(found: Backup, state: KeyState, name: str) -> Restored:
            snapshot, left_out = restored(found, state, name)
            values = {field: getattr(found, source) for field, source in of_backup.items()}
            entries = snapshot.entries
            if "revision" in values:  # those of a plain copy of the backup
                entries = tuple(
                    msgspec.structs.replace(one, revision=next(o.revision for o in found.entries if o.key == one.key))
                    for one in entries
                )
            return msgspec.structs.replace(snapshot, entries=entries, **values), left_out

        monkeypatch.setattr(commands, "restored", unraised)

    return plant


def epochs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup, "_raised", lambda entry, by: entry.value)


def again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that is asked for twice is done twice."""
    monkeypatch.setattr(commands, "digest", lambda data: "other")
    monkeypatch.setattr(commands, "problem_of_target", lambda state: "")
    restored = commands.restored
    monkeypatch.setattr(commands, "restored", lambda found, state, name: restored(found, state, "one"))


MUTANTS = {
    "epochs of the backup": (epochs_stay, "an epoch goes back"),
    "incarnations of the backup": (keeps(incarnation="incarnation"), "an incarnation twice"),
    "revisions of the backup": (keeps(revision="revision"), "a revision twice"),
    "restored again": (again_and_again, "an epoch goes back"),
}


def test_nothing_goes_back() -> None:
    assert found(QUICK_SEEDS) == (0, "")


def test_a_seed_replays_exactly() -> None:
    first, second = RestoreScenario(3, keep_trace=True), RestoreScenario(3, keep_trace=True)
    first.run()
    second.run()
    assert first.world.lines == second.world.lines and len(first.world.lines) > 500


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, expected = MUTANTS[name]
    plant(monkeypatch)
    seed, violation = found(FOUND_WITHIN)
    assert seed and violation.startswith(expected), (seed, violation)


@pytest.mark.slow
def test_nothing_goes_back_over_many_seeds() -> None:
    assert found(SLOW_SEEDS) == (0, "")
