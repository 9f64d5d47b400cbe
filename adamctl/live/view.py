"""The view model: turns a run's progress into labelled texts and rows. Pure, so that tests can be tables.

The rich display, the plain lines and the closing summary all use it and decide nothing themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from adamctl.config.names import in_short, printable
from adamctl.live.batch import batch_closing, batch_facts, batch_parts
from adamctl.live.reading import ProcessReading, cpu_text, memory_text, total
from adamctl.live.replicas import MemberLine, member_lines
from adamctl.live.units import count, duration, measured, share
from adamctl.roles.coordinator.core.progress import EvaluationResult, ReplicaRow, RunProgress

MESSAGES_SHOWN_MAX = 3
MESSAGE_CHARACTERS_MAX = 1000
_ROLE_ORDER = ("controller", "coordinator", "ps", "data", "worker")
_STATE_TEXT = {
    "warmstart": "warmstart: one replica alone",
    "finishing": "finishing: last evaluation and checkpoint",
}
"""Texts for states whose own word, which programs also read, does not say enough."""


@dataclass(frozen=True)
class RoleLine:
    """One process of the run, or several with one role, as a row of texts."""

    role: str
    node: str
    state: str
    cpu: str
    memory: str
    detail: str
    reading: ProcessReading | None = None


@dataclass(frozen=True)
class View:
    """Everything the live display shows.

    Attributes:
        title: job and state.
        share: of the run that is done, 0 to 1.
        facts: (label, value) in the order they are shown.
        roles: one row per process that is in no replica of several partitions.
        replicas: those of several partitions; `cut`: how, in short.
        readings: by node.
        messages: the newest few, oldest first.
    """

    title: str
    share: float
    facts: tuple[tuple[str, str], ...]
    roles: tuple[RoleLine, ...]
    messages: tuple[str, ...]
    replicas: tuple[ReplicaRow, ...] = ()
    readings: Mapping[str, ProcessReading] = field(default_factory=dict)

    @property
    def cut(self) -> str:
        return printable(next((one.cut for one in self.replicas if one.cut), ""))

    @property
    def proposed(self) -> str:
        """Cuts with which the partitions of a replica would take as long, where one of them is slow."""
        return printable(next((one.proposed for one in self.replicas if one.proposed), ""))

    @property
    def partitions(self) -> int:
        """How many workers are in replicas of several partitions."""
        return sum(len(one.members) for one in self.replicas)

    def members(self, rows_max: int) -> list[MemberLine]:
        """Returns rows of the replicas, so many at most if possible."""
        return member_lines(self.replicas, self.readings, rows_max)


def view_of(progress: RunProgress, readings: Mapping[str, ProcessReading]) -> View:
    """Returns what to show; `readings` are by node name and may lack any of them."""
    problems = [f"{node}: {one.problem}" for node, one in readings.items() if one.problem]
    news = (*progress.messages, *problems)
    return View(
        title=printable(f"{progress.job}: {_STATE_TEXT.get(progress.state, progress.state)}"),
        share=min(max(progress.progress, 0.0), 1.0),
        facts=tuple(_facts(progress)),
        roles=tuple(_role_lines(progress, readings)),
        messages=tuple(in_short(one, MESSAGE_CHARACTERS_MAX) for one in news[-MESSAGES_SHOWN_MAX:]),
        replicas=() if progress.final else progress.replicas,
        readings=readings,
    )


def fold(roles: Sequence[RoleLine], rows_max: int) -> tuple[RoleLine, ...]:
    """Returns at most `rows_max` rows if possible: merges rows of one role, starting with the most numerous role."""
    rows, folded = list(roles), set[str]()
    while len(rows) > rows_max:
        counts = Counter(row.role for row in rows if row.role not in folded)
        role, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        if count < 2:
            break
        folded.add(role)
        place = next(index for index, row in enumerate(rows) if row.role == role)
        together = _folded(role, [row for row in rows if row.role == role])
        rows = [*rows[:place], together, *(row for row in rows[place:] if row.role != role)]
    return tuple(rows)


def _folded(role: str, rows: Sequence[RoleLine]) -> RoleLine:
    states = Counter(row.state for row in rows)
    found = total([row.reading for row in rows if row.reading is not None], role)
    state = next(iter(states)) if len(states) == 1 else "mixed"
    detail = "" if len(states) == 1 else ", ".join(f"{count} {state}" for state, count in states.most_common())
    return _role_line(role, f"{len(rows)} x {role}", state, detail, found)


def _facts(progress: RunProgress) -> Sequence[tuple[str, str]]:
    speed = (
        (printable(f"{_split(progress)} {progress.metric}"), measured(progress.metric, progress.value)),
        (printable(f"best {progress.metric}"), measured(progress.metric, progress.best_value)),
        ("images/s", count(progress.images_per_s)),
        ("connections/s", count(progress.connections_per_s)),
    )
    waited = ("waited for data", share(progress.waiting_share))
    trained = ("trained", duration(progress.train_seconds))
    if progress.batch is not None:
        left = ("left at most", duration(progress.eta_seconds))
        return (*batch_facts(progress.batch, progress.passes_total), *speed, waited, trained, left)
    return (
        ("pass", _passes(progress)),
        ("loss", "-" if progress.loss is None else f"{progress.loss:.4f}"),
        *speed,
        ("updates/s", count(progress.updates_per_s)),
        ("gradient age p50/p99", _quantiles(progress.gradient_age_p50, progress.gradient_age_p99)),
        ("staleness p50/p99", _quantiles(progress.staleness_p50, progress.staleness_p99)),
        waited,
        ("examples", count(progress.examples)),
        trained,
        ("time left", duration(progress.eta_seconds)),
        *((("skipped", count(progress.skipped)),) if progress.skipped else ()),
    )


def _passes(progress: RunProgress) -> str:
    done = min(progress.pass_number + progress.pass_share, progress.passes_total)
    return f"{done:.2f} of {progress.passes_total}"


def _split(progress: RunProgress) -> str:
    return printable(progress.evaluations[-1].split) if progress.evaluations else "test"


def _quantiles(p50: int | None, p99: int | None) -> str:
    return "-" if p50 is None else f"{p50}/{p99}"


def _role_lines(progress: RunProgress, readings: Mapping[str, ProcessReading]) -> list[RoleLine]:
    """Returns the roles that the coordinator knows, and the processes that only this machine knows."""
    known = {row.node for row in progress.roles}
    others = [] if progress.final else [(node, one.role) for node, one in readings.items() if node not in known]
    grouped = set() if progress.final else {one.node for replica in progress.replicas for one in replica.members}
    rows = [(row.role, row.node, row.state, row.detail) for row in progress.roles if row.node not in grouped]
    rows += [(role, node, "serving" if role == "controller" else "starting", "") for node, role in others if role]
    rows.sort(key=lambda row: (_rank(row[0]), _natural(row[1])))
    return [_role_line(*row, readings.get(row[1])) for row in rows]


def _rank(role: str) -> int:
    return _ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER)


def _natural(node: str) -> list[tuple[int, str]]:
    """Returns a key that puts worker-2 before worker-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in node.split("-")]


def _role_line(role: str, node: str, state: str, detail: str, reading: ProcessReading | None) -> RoleLine:
    if reading is not None and reading.problem:
        state = "degraded"
    return RoleLine(
        printable(role),
        printable(node),
        printable(state),
        cpu_text(reading),
        memory_text(reading),
        printable(detail),
        reading,
    )


def progress_line(progress: RunProgress) -> str:
    """Returns the plain line that a log or a pipe gets every ten seconds."""
    batch = progress.batch
    parts = [progress.state]
    if batch is not None:
        parts += batch_parts(batch, progress.passes_total)
    else:
        parts.append(f"pass {_passes(progress)}")
        if progress.loss is not None:
            parts.append(f"loss {progress.loss:.4f}")
    if progress.value is not None:
        parts.append(f"{_split(progress)} {progress.metric} {measured(progress.metric, progress.value)}")
    parts.append(f"{count(progress.images_per_s)} images/s")
    if progress.gradient_age_p50 is not None and batch is None:
        parts.append(f"gradient age {_quantiles(progress.gradient_age_p50, progress.gradient_age_p99)}")
    if progress.eta_seconds is not None:
        parts.append(f"{'at most ' if batch is not None else ''}{duration(progress.eta_seconds)} left")
    return printable(f"{progress.job}: " + ", ".join(parts))


def evaluation_line(job: str, result: EvaluationResult) -> str:
    """Returns one plain line about an evaluation."""
    where = f"pass {result.passes:.2f}, {duration(result.train_seconds)} of training"
    skipped = f", damaged and skipped: {result.skipped:,}" if result.skipped else ""
    found = f"{result.split} {result.metric} {measured(result.metric, result.value)}"
    return printable(f"{job}: {found}, loss {_loss(result.loss)} ({where}){skipped}")


def closing_lines(progress: RunProgress, folder: str, commands: Sequence[str]) -> list[str]:
    """Returns a run's closing summary: what was found, speed, the run folder and what to type next."""
    head = {"stopped": f"stopped: {progress.failure}" if progress.failure else "stopped"}
    lines = [f"{progress.job}: {head.get(progress.state, progress.state)}"]
    if progress.best_value is not None:
        found, best = (measured(progress.metric, value) for value in (progress.value, progress.best_value))
        lines.append(f"  {_split(progress) + ' ' + progress.metric:<14} {found}, best {best}")
    if progress.batch is not None:
        lines.extend(f"  {label:<14} {text}" for label, text in batch_closing(progress.batch))
    trained = f"{duration(progress.train_seconds)}, {count(progress.images_per_s)} images/s"
    lines.append(f"  {'trained':<14} {trained}, {count(progress.connections_per_s)} connections/s")
    lines.extend(f"  {'skipped':<14} {text}" for text in _skipped(progress))
    lines.append(f"  {'run folder':<14} {folder}")
    lines.extend(f"  {'next' if index == 0 else '':<14} {command}" for index, command in enumerate(commands))
    return list(map(printable, lines))


def _skipped(progress: RunProgress) -> list[str]:
    """Returns what was left out as damaged, nothing where nothing was."""
    parts = []
    if progress.skipped:
        parts.append(f"{progress.skipped:,} of {progress.examples:,} training examples, all passes together")
    if evaluated := max((result.skipped for result in progress.evaluations), default=0):
        parts.append(f"{evaluated:,} of the {_split(progress)} split")
    return [f"damaged: {', '.join(parts)}; the data servers' logs name them"] if parts else []


def _loss(loss: float | None) -> str:
    return "not finite" if loss is None else f"{loss:.4f}"
