"""Planted faults of jobs that begin with given values or from a checkpoint, and of clients beyond those remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from adamctl.model.layout import ParameterLayout
from adamctl.roles.ps import initial_values as building
from adamctl.roles.ps.core.exactly_once import ClientKey, ClientMemory, MemoryChange
from adamctl.roles.ps.core.job import Job, ShardContent
from adamctl.roles.ps.core.push import Place, Update
from adamctl.roles.ps.core.shard import Shard
from adamctl.roles.ps.core.sync_steps import ShardSteps, StepPart
from adamctl.roles.ps.jobs import copy_builder as copies
from adamctl.roles.ps.store.log_index import Holdings
from tests.sim.servers.cluster import ServerCluster, ServerFault

# --- the jobs that show them ----------------------------------------------------------------------------------------


def _given(cluster: ServerCluster) -> None:
    """A client gives the initial values."""
    cluster.become("given")


def _restored(cluster: ServerCluster) -> None:
    """The job begins from a checkpoint."""
    cluster.become("restores")


def _restored_and_idle(cluster: ServerCluster) -> None:
    """As well, and hardly anybody pushes."""
    cluster.become("restores")
    for client in cluster.clients:
        client.pause_s_max = 60.0
    cluster.ledger.clients_rest = True  # they may never learn of a loss


def _crowded(cluster: ServerCluster) -> None:
    """More clients come than are remembered."""
    cluster.become("evicts")


def _in_step(cluster: ServerCluster) -> None:
    """All replicas go in step."""
    cluster.become("steps")


# --- initial values -------------------------------------------------------------------------------------------------


def _taken_for_nobody(self: Job, bucket: Any, contents: Iterable[ShardContent], threads: int) -> None:
    """Who takes a bucket over does not know yet that the first push of a client has been applied."""
    _install(self, bucket, [replace(content, memory=_without_first(content.memory)) for content in contents], threads)


def _without_first(memory: ClientMemory | None) -> ClientMemory | None:
    if memory is not None:
        memory.clients = {key: client for key, client in memory.clients.items() if client.done > 1}
    return memory


_install = Job.install

# --- checkpoints ----------------------------------------------------------------------------------------------------


def _built_from_the_checkpoint(
    layout: ParameterLayout,
    buckets: Sequence[int],
    rule: Any,
    seed: int,
    restore: str,
    parameters_only: bool = False,
    stored: Callable[[int], Any] = lambda bucket: {},
) -> Any:
    """What began from a checkpoint begins from it again, whatever the store has."""
    found = (lambda bucket: {}) if restore else stored
    return _build(layout, buckets, rule, seed, restore, parameters_only, found)


def _without_memory(*given: Any) -> ShardContent:
    """Values come back from a checkpoint without the numbers of their clients."""
    return replace(_restore(*given), memory=None)


def _without_state(layout: Any, index: int, rule: Any, checkpoint: Any, parameters_only: bool) -> ShardContent:
    content = _restore(layout, index, rule, checkpoint, parameters_only)
    return replace(content, state=rule.initial_state(content.values.size))


def _never_written(self: Holdings, entry: Any) -> None:
    """What was restored is written when somebody pushes to it."""


_build, _restore = building.build_buckets, building._restored

# --- clients that are forgotten -------------------------------------------------------------------------------------


def _no_mark(self: ClientMemory, key: ClientKey, counter: int) -> None:
    del self.clients[key]


def _newest_evicted(self: ClientMemory, key: ClientKey, counter: int) -> None:
    """Who was used last is evicted first."""
    _evict(self, next((one.key for one in reversed(self.clients.values()) if one.idle), key), counter)


def _marks_not_taken(self: ClientMemory, change: MemoryChange) -> None:
    """Copies are not told whom their primary has forgotten."""
    _take(self, replace_change(change))


def replace_change(change: MemoryChange) -> MemoryChange:
    return MemoryChange(change.clients, (), 0, change.evicted_incarnation, change.step)


_evict, _take = ClientMemory._evict, ClientMemory.take

# --- steps ----------------------------------------------------------------------------------------------------------


def _complete_without_one(self: ShardSteps) -> list[Update]:
    """A step is complete when one part is missing."""
    if 1 <= self.count - len(self.parts) <= 1 and self.count > 1:
        given = dict(enumerate(self.parts.values()))
        self.parts, self.count = given, len(given)
    return _complete(self)


def _twins_count(self: ShardSteps, update: StepPart, place: Place) -> list[Update]:
    """A part that two have made is added twice."""
    out = _take_part(self, update, place)
    for twin in (update, *self.twins) if update in out or update in self.twins else ():
        if isinstance(twin, StepPart) and twin.step and not twin.code and twin.step > self.begun - bool(out):
            twin.superseded = False
    return out


def _not_noted(shard: Shard, batch: Any) -> None:
    """Which steps a shard has had is not part of what it remembers."""


_complete, _take_part = ShardSteps._complete, ShardSteps.take

MUTANTS = {
    one.name: one
    for one in (
        ServerFault(
            "given-again-after-takeover",
            "who takes a bucket over takes its initial values a second time",
            [(Job, "install", _taken_for_nobody)],
            _given,
        ),
        ServerFault(
            "given-and-not-on-disk",
            "initial values are acknowledged before they are on disk",
            [(Shard, "initial_values_volatile", property(lambda self: False))],
            _given,
        ),
        ServerFault(
            "checkpoint-over-the-store",
            "a restart rebuilds from the checkpoint what is newer in the store",
            [(copies, "build_buckets", _built_from_the_checkpoint)],
            _restored,
        ),
        ServerFault(
            "checkpoint-without-memory",
            "a job that begins from a checkpoint has forgotten the numbers of its clients",
            [(building, "_restored", _without_memory)],
            _restored,
        ),
        ServerFault(
            "checkpoint-without-state",
            "a job begins from a checkpoint without the rule's state",
            [(building, "_restored", _without_state)],
            _restored,
        ),
        ServerFault(
            "marks-of-another-cluster",
            "whom the cluster that wrote a checkpoint had forgotten is kept out of this one",
            [(ClientMemory, "restart", lambda self: None)],
            _restored,
        ),
        ServerFault(
            "restored-and-not-written",
            "what was restored is not on disk before somebody pushes to it",
            [(Holdings, "_write_once", _never_written)],
            _restored_and_idle,
        ),
        ServerFault(
            "evicted-without-a-mark",
            "a client that is evicted leaves no mark, and counts as new when it comes again",
            [(ClientMemory, "_evict", _no_mark)],
            _crowded,
        ),
        ServerFault(
            "newest-evicted-first",
            "the client that was used last is forgotten first",
            [(ClientMemory, "_evict", _newest_evicted)],
            _crowded,
        ),
        ServerFault(
            "marks-not-shipped",
            "copies are not told whom their primary has forgotten",
            [(ClientMemory, "take", _marks_not_taken)],
            _crowded,
        ),
        ServerFault(
            "step-without-a-part",
            "a step is applied when one part is missing",
            [(ShardSteps, "_complete", _complete_without_one)],
            _in_step,
        ),
        ServerFault(
            "part-counts-twice",
            "a part that two replicas have made is added twice",
            [(ShardSteps, "take", _twins_count)],
            _in_step,
        ),
        ServerFault(
            "step-not-remembered",
            "a shard does not remember which steps it has had",
            [(Shard, "steps_done", _not_noted)],
            _in_step,
        ),
    )
}
