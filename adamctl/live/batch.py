"""The run of a batch algorithm as texts: iterations and their bundles, in place of updates and their age. Pure."""

from __future__ import annotations

from adamctl.config.names import printable
from adamctl.live.units import figure, share
from adamctl.roles.coordinator.core.progress import BatchProgress

_REASONS = {
    "gradient": "max|g| is at most optimizer.gradient_tolerance",
    "change": "the loss changed by at most optimizer.change_tolerance",
    "precision": "float32 tells no better point along any direction",
    "budget": "the evaluations of train.passes are used up",
}
"""What the words of built-in algorithms mean; those of other packages stand alone."""


def batch_facts(batch: BatchProgress, evaluations_total: int) -> list[tuple[str, str]]:
    """Returns (label, value) of what only a batch algorithm has, in the order they are shown."""
    return [
        ("algorithm", printable(batch.algorithm)),
        ("iteration", "-" if batch.iterations is None else str(batch.iterations)),
        ("evaluations", f"{batch.evaluations} of {evaluations_total}"),
        ("per iteration", each_iteration(batch)),
        ("bundles", _bundles(batch)),
        ("loss", figure(batch.loss)),
        ("max|g|", figure(batch.gradient_max)),
        ("step", figure(batch.step)),
        ("backups", _backups(batch)),
        ("restarts", str(batch.restarts)),
        ("in commands", commands_share(batch)),
    ]


def batch_parts(batch: BatchProgress, evaluations_total: int) -> list[str]:
    """Returns how far an algorithm is, for a plain line."""
    parts = [f"iteration {batch.iterations}"] if batch.iterations is not None else []
    parts.append(f"{batch.evaluations} of {evaluations_total} evaluations")
    if 0 < batch.bundles < batch.bundles_total:
        parts.append(f"{_bundles(batch)} bundles")
    if batch.loss is not None:
        parts.append(f"loss {figure(batch.loss)}")
    if batch.gradient_max is not None:
        parts.append(f"max|g| {figure(batch.gradient_max)}")
    return parts


def batch_closing(batch: BatchProgress) -> list[tuple[str, str]]:
    """Returns (label, text) of what an algorithm has found and why it stopped, for a closing summary."""
    done = _counted(batch.evaluations, "evaluation")
    if batch.iterations:
        done = f"{_counted(batch.iterations, 'iteration')}, {done}, {each_iteration(batch)} an iteration"
    if batch.restarts:
        done += f", {_counted(batch.restarts, 'restart')}"
    lines = [(batch.algorithm, done)]
    if batch.loss is not None:
        largest = "" if batch.gradient_max is None else f", max|g| {figure(batch.gradient_max)}"
        lines.append(("loss", f"{figure(batch.loss)}{largest}"))
    if batch.stop_reason:
        meaning = _REASONS.get(batch.stop_reason, "")
        lines.append(("stopped", f"{batch.stop_reason}{': ' if meaning else ''}{meaning}"))
    if batch.backups:
        lines.append(("backups", _backups(batch)))
    if batch.evaluation_seconds:
        lines.append(("in commands", f"{commands_share(batch)} of the time"))
    return lines


def each_iteration(batch: BatchProgress) -> str:
    """Returns evaluations an iteration, without the one at the start: 1 is the least."""
    return "-" if not batch.iterations else f"{max(batch.evaluations - 1, 0) / batch.iterations:.2f}"


def commands_share(batch: BatchProgress) -> str:
    """Returns the share of rounds and commits in the time that they and evaluations take."""
    together = batch.command_seconds + batch.evaluation_seconds
    return "-" if together <= 0 else share(batch.command_seconds / together)


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _bundles(batch: BatchProgress) -> str:
    return f"{batch.bundles} of {batch.bundles_total}" if batch.bundles_total else "-"


def _backups(batch: BatchProgress) -> str:
    return f"{batch.backups}, {batch.backups_won} won" if batch.backups else "0"
