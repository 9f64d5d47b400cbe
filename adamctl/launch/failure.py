"""Describes the first cause of a run's end: which role, where, what happened to it, and the end of its log."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass
from pathlib import Path

from adamctl.launch.supervision import RoleEnd, describe_status
from adamctl.roles.role_logs import last_lines

_CLEAR_BY_THEMSELVES = frozenset({2, 3, 5})
"""Exit codes whose message needs no log: wrong configuration, an unreachable peer, damaged data."""
_RECORD = re.compile(r"\d{4}-\d\d-\d\dT\S+ [A-Z]+ \S+ \S+ ")
"""A line as `adamctl.roles.log` formats it: time, level, role, node, message."""
_ERROR = re.compile(r"\S+ ERROR \S+ \S+ (.+)")


@dataclass(frozen=True)
class LastWords:
    """The end of a role's log: on which host, in which file."""

    host: str
    path: str
    lines: tuple[str, ...]


def words_here(log: Path) -> LastWords:
    """Returns the end of a log on this machine."""
    return LastWords(platform.node(), str(log), tuple(last_lines(log)))


def last_error(words: LastWords) -> str:
    """Returns the message of the last error in a role's log, or nothing."""
    found = [match[1] for match in map(_ERROR.match, words.lines) if match]
    return found[-1] if found else ""


def up_to_the_error(lines: list[str]) -> list[str]:
    """Returns the lines of a log up to the end of its last error, which may be many lines long."""
    records = [index for index, line in enumerate(lines) if _RECORD.match(line)]
    errors = [index for index in records if _ERROR.match(lines[index])]
    after = [index for index in records if errors and index > errors[-1]]
    return lines[: after[0]] if after else lines


def first_cause(role: str, node: str, reason: str, words: LastWords, said_why: bool = False) -> str:
    """Returns the message that ends a failed run.

    A role that `said_why` it failed has logged the reason as an error, and the message then ends with that error.
    """
    lines = list(words.lines)
    if said_why:
        lines = up_to_the_error(lines)
    text = f"the run failed: {node} (role {role} on {words.host}) ended: {reason}"
    if not lines:
        return f"{text}\n  its log is empty: {words.path}"
    return "\n".join([text, f"  the end of {words.path}:", *(f"    {line}" for line in lines)])


def message_of(role: str, node: str, reason: str, exit_code: int, words: LastWords, end: RoleEnd | None) -> str:
    """Returns the message that ends a run with `exit_code` because of a role: its error alone if that is clear.

    `end` is how the role's process ended, if it has.
    """
    if exit_code in _CLEAR_BY_THEMSELVES or (end is not None and not end.retry_helps):
        only_a_status = end is not None and reason == describe_status(end.status)
        clear = last_error(words) if only_a_status else reason
        if clear:
            return f"{node if end is None else end.who}: {clear}"
    return first_cause(role, node, reason, words, said_why=end is not None and bool(end.error))
