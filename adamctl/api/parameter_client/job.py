"""A job that clients of other frameworks share: found by its name, or created by the first client."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from numbers import Real
from urllib.parse import urlsplit

from adamctl.api.parameter_client.arrays import check_same, make_tensors
from adamctl.config.experiment import OptimizerConfig, ScheduleConfig
from adamctl.config.records import (
    REPLICATION_MAX,
    Acks,
    JobRecord,
    LayoutRecord,
    NodeRecord,
    decode,
    default_acks,
    default_min_in_sync,
    job_key,
    layout_key,
)
from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    DamagedDataError,
    RemoteError,
    RunFailedError,
    UnreachableError,
)
from adamctl.kernels.rules.make import make_rule
from adamctl.model.layout import ParameterLayout, cut_layout
from adamctl.model.rule import RuleConfig
from adamctl.net.address import parse_address
from adamctl.roles.configuration import ConfigurationStore, nodes_of, wait_for
from adamctl.roles.controller.etcd.url import is_etcd, split_job
from adamctl.roles.coordinator.job import job_changes, keeping, spread
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ConfigEntry
from adamctl.wire.unreadable import UNREADABLE

LOOK_EVERY_S = 0.2
ADDRESS_EXPECTED = (
    "expected adam://HOST:PORT/JOB, the address of a controller and the name of a job, or "
    "etcd://HOST:PORT[/PREFIX]/JOB, an etcd cluster as --config-store names it and the name of a job"
)


@dataclass(frozen=True)
class FoundJob:
    """A running job. `created`: this client created it and gives its initial values."""

    name: str
    record: JobRecord
    created: bool


def parse_url(url: str) -> tuple[tuple[str, ...], str]:
    """Returns where the configuration is kept, in the form of `cluster_client`, and the job's name.

    These are the controllers' addresses in `adam://host:port[,host:port]/job`, or the URL of an etcd cluster: the value
    of `--config-store` with `/job` after its path, `etcd://host:port[,host:port][/prefix]/job[?lost_after=S]`.

    Raises:
        ConfigurationError: the URL has another form.
    """
    if not isinstance(url, str):
        raise ConfigurationError(f"{ADDRESS_EXPECTED}; found {url!r}")
    if is_etcd(url):
        address, job = split_job(url)
        _check_job(job, url)
        return (address,), job
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigurationError(f"{ADDRESS_EXPECTED}; found {url!r}: {error}") from error
    job = parts.path.removeprefix("/")
    if parts.scheme != "adam" or not parts.netloc or parts.query or parts.fragment:
        raise ConfigurationError(f"{ADDRESS_EXPECTED}; found {url!r}")
    _check_job(job, url)
    return tuple(str(parse_address(address)) for address in parts.netloc.split(",")), job


def check_deadline(deadline_s: float) -> float:
    """Returns the seconds. Raises ConfigurationError: not a number, not above 0, or infinite."""
    if not isinstance(deadline_s, Real) or not 0 < deadline_s < inf:
        raise ConfigurationError(f"deadline_s: expected a finite number of seconds above 0; found {deadline_s!r}")
    return deadline_s


def left_s(until_s: float) -> float:
    """Returns the seconds until a time of the loop's clock, at least a millisecond."""
    return max(until_s - asyncio.get_running_loop().time(), 0.001)


def _check_job(job: str, url: str) -> None:
    if not re.fullmatch(r"[^/~]{1,190}", job):
        raise ConfigurationError(f"{ADDRESS_EXPECTED} without slashes and ~; found {job!r} in {url!r}")


def rule_config(rule: OptimizerConfig | RuleConfig | None) -> RuleConfig | None:
    """Returns the rule that servers run, checked.

    Raises:
        ConfigurationError: a setting is out of range, or works only with `adamctl train`.
    """
    if rule is None:
        return None
    if isinstance(rule, OptimizerConfig):
        if rule.is_batch:
            raise ConfigurationError(
                f"rule: {rule.type!r} is a batch algorithm, which evaluates a whole data set; use fit or adamctl train"
            )
        if rule.schedule != ScheduleConfig():
            raise ConfigurationError(
                "rule: a schedule needs passes, which a client does not have; use push(learning_rate=)"
            )
        if rule.clip_norm is not None:
            raise ConfigurationError("rule: clip_norm is applied where gradients are computed; clip before you push")
        rule = rule.rule
    make_rule(rule, "numpy")
    return rule


async def find_or_make(
    store: ConfigurationStore,
    wanted: str,
    shapes: Mapping[str, Sequence[int]] | None,
    rule: RuleConfig | None,
    servers: int | None,
    acks: Acks | None,
    replication: int | None,
    node: str,
    deadline_s: float,
) -> FoundJob:
    """Returns the running job of this name; creates it, as `node`, if there is none; of several clients one succeeds.

    A job that has ended is left alone; the next one of its name is `NAME~2` and so on, because servers may still be
    freeing the old one.

    Args:
        shapes: name -> shape of the arrays; None only looks for a job and never creates one.
        servers: how many parameter servers a new job gets; None: all present ones.
        acks: when pushes are acknowledged; None: the job's setting; for a new job `replicated` if it has copies, else
            `applied`.
        replication: copies of each part; None: the job's setting; 1 for a new job.

    Raises:
        ConfigurationError: the job has other arrays, another rule, other `acks` or another `replication`.
        UnreachableError: no job, or too few parameter servers, within `deadline_s`.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + deadline_s
    _check_copies(replication, servers, acks)
    while True:
        name, record, layout = await _newest(store, wanted)
        if record is not None and record.state == "running" and layout is not None:
            if shapes is not None:
                check_same(name, layout, shapes)
            if rule is not None and rule != record.rule:
                raise ConfigurationError(f"job {name!r} runs {record.rule}; found {rule}; give the same rule, or none")
            for what, asked in (("acks", acks), ("replication", replication)):
                there = getattr(record, what)
                if asked is not None and asked != there:
                    text = f"job {name!r} has {what} = {there!r}; found {asked!r}; give the same value, or none"
                    raise ConfigurationError(text)
            return FoundJob(name, record, created=False)
        if shapes is None:
            if loop.time() >= until_s:
                raise UnreachableError(f"expected a running job {wanted!r}; found none within {deadline_s:g} s")
            await asyncio.sleep(LOOK_EVERY_S)
            continue
        if record is not None:
            name = _next(name)
        copies = replication or 1
        level = acks or default_acks(copies)
        chosen = await _servers(store, name, servers, copies, level, max(until_s - loop.time(), 0.0))
        new = cut_layout(make_tensors(shapes), len(chosen))
        record = JobRecord(
            "running",
            new.hash,
            rule or RuleConfig("add"),
            0,
            node,
            acks=level,
            replication=copies,
            min_in_sync=default_min_in_sync(copies),
        )
        if not (await store.compare_and_set(job_changes(name, record, new, len(chosen), chosen))).conflicts:
            return FoundJob(name, record, created=True)


def _check_copies(replication: int | None, servers: int | None, acks: Acks | None) -> None:
    if replication is not None and not 1 <= replication <= REPLICATION_MAX:
        raise ConfigurationError(f"replication: expected 1 to {REPLICATION_MAX} copies; found {replication}")
    if replication is not None and servers is not None and servers < replication:
        raise ConfigurationError(
            f"replication: found {replication} copies on {servers} servers; each needs a server of its own"
        )
    if acks == "replicated" and replication == 1:
        raise ConfigurationError("acks: found 'replicated' with replication = 1; give 2 or 3 copies, or acks='applied'")


async def _newest(store: ConfigurationStore, wanted: str) -> tuple[str, JobRecord | None, ParameterLayout | None]:
    """Returns the latest job of this name, running or not: `NAME`, `NAME~2`, ..."""
    _, entries = await store.read(job_key(wanted))
    values = {entry.key: entry.value for entry in entries}
    numbers = [1] if job_key(wanted) in values else []
    prefix = job_key(f"{wanted}~")
    numbers += [int(key.removeprefix(prefix)) for key in values if re.fullmatch(re.escape(prefix) + r"\d+", key)]
    if not numbers:
        return wanted, None, None
    name = wanted if max(numbers) == 1 else f"{wanted}~{max(numbers)}"
    try:
        layout = decode(values[layout_key(name)], LayoutRecord).layout() if layout_key(name) in values else None
        return name, decode(values[job_key(name)], JobRecord), layout
    except UNREADABLE as error:
        raise DamagedDataError(f"the records of job {name!r} cannot be read: {error}; choose another name") from error


def _next(name: str) -> str:
    plain, _, number = name.partition("~")
    return f"{plain}~{int(number or 1) + 1}"


async def _servers(
    store: ConfigurationStore, job: str, wanted: int | None, copies: int, acks: Acks, deadline_s: float
) -> tuple[NodeRecord, ...]:
    least = wanted or copies
    count = f"{least} parameter server{'s' if least > 1 else ''}"
    stored = acks == "durable"
    described = (
        f"{count}{' with a store' if stored else ''} (start one with: adamctl ps start{' --store DIR' * stored})"
    )

    def enough(entries: list[ConfigEntry]) -> tuple[NodeRecord, ...] | None:
        found = keeping(spread(job, nodes_of(entries, "ps")), acks)
        return tuple(found[:wanted]) if len(found) >= least else None

    return await wait_for(store, "/nodes/", enough, deadline_s, described)


def is_over(error: BaseException) -> bool:
    """Returns whether an error means that the job has ended."""
    return isinstance(error, RemoteError) and error.code in (ErrorCode.RUN_ENDED, ErrorCode.UNKNOWN_JOB)


def told(job: str, error: BaseException) -> AdamctlError:
    """Returns the error that a user of a job gets for one that has ended a call, or a push on its way."""
    if is_over(error):
        return RunFailedError(f"job {job!r} has ended: {error}")
    if isinstance(error, AdamctlError):
        return error
    failed = RunFailedError(f"job {job!r}: a push failed, and may or may not have been applied: {error!r}")
    failed.__cause__ = error
    return failed
