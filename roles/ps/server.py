"""The parameter server's shell: feeds requests, configuration and finished batches to the core, does what it says."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from adamctl.config.records import NodeRecord, node_key
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError, UnreachableError
from adamctl.kernels.backend import RULE_MODULES, warm_up
from adamctl.kernels.rules.make import make_rule
from adamctl.net.transport import Request
from adamctl.roles.context import RoleContext
from adamctl.roles.controller.client import follow, read_record
from adamctl.roles.ps.apply import ApplyInline, ApplyThreads
from adamctl.roles.ps.building import build_buckets, bytes_needed
from adamctl.roles.ps.core import Core
from adamctl.roles.ps.core_instructions import (
    AnswerAttach,
    AnswerPull,
    AnswerPush,
    Apply,
    Image,
    Instruction,
    Keep,
    Refresh,
    Refuse,
)
from adamctl.roles.ps.core_job import Job, quantile
from adamctl.roles.ps.core_sequence import ClientKey
from adamctl.roles.ps.core_shard import Shard
from adamctl.roles.ps.following import JOBS_PREFIX, JobKeys, JobView
from adamctl.roles.ps.saving import save_shards
from adamctl.roles.ps.statistics import Rates
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import AttachRequest, CheckpointReply, CheckpointRequest, PullRequest, PushRequest

CONTROLLER_PAUSE_S = 0.5
THREADS_MAX = 256
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


async def run(context: RoleContext) -> None:
    """Serves jobs until `context.stopping` is set."""
    threads = thread_count(str(context.options.get("apply_threads", "auto")))
    memory_bytes = memory_quota_bytes(str(context.options.get("memory", "80%")))
    await ParameterServer(context, threads, memory_bytes).run()


class ParameterServer:
    """One parameter server in this process."""

    def __init__(self, context: RoleContext, threads: int, memory_bytes_max: int) -> None:
        loop = asyncio.get_running_loop()
        self.core = Core(max(threads, 1))
        self._context, self._log, self._now = context, context.log, loop.time
        self._memory_bytes_max = memory_bytes_max
        self._building_bytes: dict[str, int] = {}
        self._keys = JobKeys()
        self._threads = ApplyThreads(threads, self._completed) if threads else ApplyInline(self._completed)
        self._tasks: set[asyncio.Task[None]] = set()
        self._refreshing: set[str] = set()
        self._registered_revision = 0
        self._rates = Rates(loop.time())

    async def run(self) -> None:
        self._context.status = self.status
        following: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Kernels load in a thread meanwhile: a job's first rule would hold up the loop for as long as that takes.
        kernels = asyncio.create_task(asyncio.to_thread(warm_up, modules=RULE_MODULES))
        try:
            await self._context.serve(self.handle, on_disconnect=self.core.disconnected)
            await kernels
            following = asyncio.create_task(self._follow())
            stopping = asyncio.create_task(self._context.stopping.wait())
            done, _ = await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if following in done:
                following.result()
        finally:
            for task in (following, *self._tasks):
                task.cancel()
            await asyncio.gather(following, *self._tasks, return_exceptions=True)
            self._threads.stop()

    # --- requests and instructions -----------------------------------------------------------------------------------

    def handle(self, request: Request) -> None:
        """Takes one request to the core; called on the loop."""
        message = request.message
        client: ClientKey = (request.peer.node, request.peer.incarnation)
        connection = request.connection_id
        if isinstance(message, PushRequest):
            out = self.core.push(request, connection, client, message, request.body, self._now())
        elif isinstance(message, PullRequest):
            out = self.core.pull(request, connection, client, message, self._now())
        elif isinstance(message, AttachRequest):
            out = self.core.attach(request, connection, client, message, self._now())
        elif isinstance(message, CheckpointRequest):
            self._spawn(self._checkpoint(request, message))
            return
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, f"a parameter server does not serve {type(message).__name__}")
            return
        self._carry_out(out)

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            _CARRY_OUT[type(instruction)](self, instruction)

    def _completed(self, done: Apply) -> None:
        self._carry_out(self.core.completed(done.job, done.batches))

    def _apply(self, instruction: Apply) -> None:
        self._threads.submit(instruction)

    def _keep(self, instruction: Keep) -> None:
        instruction.token.lease.retain()

    def _answer_push(self, instruction: AnswerPush) -> None:
        request = instruction.token
        request.reply(instruction.message)
        if instruction.queued:
            request.lease.release()

    def _answer_pull(self, instruction: AnswerPull) -> None:
        held = instruction.values

        def sent() -> None:
            for values in held:
                values.release()

        instruction.token.reply(instruction.message, [values.array for values in held], sent)

    def _answer_attach(self, instruction: AnswerAttach) -> None:
        body = [np.asarray(instruction.known, "<i8")] if instruction.known else []
        instruction.token.reply(instruction.message, body)

    def _refuse(self, instruction: Refuse) -> None:
        instruction.token.fail(instruction.code, instruction.message)

    def _image(self, instruction: Image) -> None:
        waiting: asyncio.Future[Image] = instruction.token
        if waiting.done():  # its checkpoint was given up
            instruction.release()
        else:
            waiting.set_result(instruction)

    def _refresh(self, instruction: Refresh) -> None:
        if instruction.job not in self._refreshing:
            self._refreshing.add(instruction.job)
            self._spawn(self._reread(instruction.job))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- checkpoints -------------------------------------------------------------------------------------------------

    async def _checkpoint(self, request: Request, message: CheckpointRequest) -> None:
        job = self.core.jobs.get(message.job)
        if job is None or not job.ready:
            code = ErrorCode.UNKNOWN_JOB if job is None else ErrorCode.NOT_READY
            request.fail(code, f"job {message.job!r} is not served here")
            return
        try:
            files = await save_shards(job, self._context.node, Path(message.folder), self._hold)
        except OSError as error:
            self._log.error("checkpoint of job %s: %s", message.job, error)
            request.fail(ErrorCode.INTERNAL, f"{self._context.node} cannot write to {message.folder}: {error}")
        except asyncio.CancelledError:
            request.fail(ErrorCode.SHUTTING_DOWN, "the server is closing")
            raise
        except Exception as error:
            self._log.exception("checkpoint of job %s", message.job)
            request.fail(ErrorCode.INTERNAL, f"{type(error).__name__}: {error}")
        else:
            request.reply(CheckpointReply(files))

    def _hold(self, shard: Shard) -> Awaitable[Image]:
        waiting: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        self._carry_out(self.core.image(waiting, shard))
        return waiting

    # --- jobs come and go --------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        """Keeps up with `/jobs/`; without the controller, what is served is served on."""
        store = self._context.controller
        assert store is not None
        found = None
        while True:
            try:
                if found is None:
                    found = await read_record(store, node_key(self._context.node), NodeRecord)
                    self._registered_revision = found[1] if found is not None else 0
                async for changes in follow(store, JOBS_PREFIX):
                    for name in sorted(self._keys.take(changes)):
                        self._reconcile(name)
            except UnreachableError as error:
                self._log.warning("the controller cannot be reached, jobs are served on: %s", error)
                await asyncio.sleep(CONTROLLER_PAUSE_S)

    async def _reread(self, name: str) -> None:
        store = self._context.controller
        assert store is not None
        try:
            _, entries = await store.read(f"{JOBS_PREFIX}{name}")
            self._keys.take_job(name, entries)
            self._reconcile(name)
        except UnreachableError as error:
            self._log.warning("job %s: %s", name, error)
        finally:
            self._refreshing.discard(name)

    def _reconcile(self, name: str) -> None:
        """Makes what we hold of a job agree with its keys."""
        view = self._keys.view(name)
        job = self.core.jobs.get(name)
        if job is not None and (view is None or job.identity != _identity(view)):
            if view is None and name in self._keys.problems:
                self._log.error("%s", self._keys.problems[name])
                return
            self.core.remove_job(name)
            self._building_bytes.pop(name, None)
            self._log.info("job %s is freed", name)
            job = None
        if view is None:
            return
        if job is None:
            job = self._add_job(name, view)
            if job is None:
                return
        node = self._context.node
        lost = view.lost_by(node, self._registered_revision)
        if lost and job.failed is None:
            text = f"{node} was restarted and no longer has {len(lost)} buckets of job {name!r}; resume the run"
            self._fail(job, ErrorCode.INTERNAL, f"{text} from its last checkpoint")
        wanted = job.configure({index: (b.epoch, b.primary == node) for index, b in view.buckets.items()})
        if wanted and job.failed is None:
            self._spawn(self._build(job, view, wanted))

    def _add_job(self, name: str, view: JobView) -> Job | None:
        try:
            job = Job(name, view.layout, make_rule(view.record.rule), _identity(view))
        except ConfigurationError as error:
            self._log.error("job %s: %s", name, error)
            return None
        self.core.add_job(job)
        return job

    async def _build(self, job: Job, view: JobView, buckets: list[int]) -> None:
        """Makes buckets in a thread and begins to serve them."""
        needed_bytes = bytes_needed(job.layout, buckets, job.rule)
        held_bytes = sum(other.size_bytes for other in self.core.jobs.values()) + sum(self._building_bytes.values())
        if held_bytes + needed_bytes > self._memory_bytes_max:
            text = (
                f"{self._context.node} has {held_bytes >> 20} of {self._memory_bytes_max >> 20} MiB in use and job "
                f"{job.name!r} needs {needed_bytes >> 20} more; add servers or raise --memory"
            )
            self._fail(job, ErrorCode.OVER_QUOTA, text)
            return
        self._building_bytes[job.name] = self._building_bytes.get(job.name, 0) + needed_bytes
        try:
            contents = await asyncio.to_thread(
                build_buckets, job.layout, buckets, job.rule, view.record.seed, view.record.restore
            )
        except (AdamctlError, OSError) as error:
            code = ErrorCode.DAMAGED_DATA if isinstance(error, DamagedDataError) else ErrorCode.INTERNAL
            self._fail(job, code, str(error))
            return
        finally:
            self._building_bytes[job.name] = self._building_bytes.get(job.name, 0) - needed_bytes
        if self.core.jobs.get(job.name) is not job:
            return
        for bucket, shards in contents.items():
            if bucket in job.building:
                job.install(job.layout.buckets[bucket], shards, self.core.threads)
        self._log.info(
            "job %s: serving %d buckets, %d shards, %.1f MiB", job.name, len(job.buckets), len(job.shards),
            job.size_bytes / (1 << 20),
        )  # fmt: skip

    def _fail(self, job: Job, code: ErrorCode, text: str) -> None:
        self._log.error("job %s: %s", job.name, text)
        job.failed = (code, text)

    # --- status ------------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Plain values for `adamctl status`; rates are over the last seconds."""
        jobs = self.core.jobs.values()
        counters = {f"updates {job.name}": float(job.updates) for job in jobs}
        counters |= {f"pushes {job.name}": float(job.pushes) for job in jobs}
        counters |= {f"busy {number}": busy for number, busy in enumerate(self._threads.busy_s)}
        rates = self._rates.sample(self._now(), counters)
        histogram = [sum(counts) for counts in zip(*(job.staleness for job in jobs), strict=True)]
        return {
            "jobs": {job.name: self._job_status(job, rates) for job in jobs},
            "buckets": sum(len(job.buckets) for job in jobs),
            "shards": sum(len(job.shards) for job in jobs),
            "bytes": sum(job.size_bytes for job in jobs),
            "bytes_max": self._memory_bytes_max,
            "updates": sum(job.updates for job in jobs),
            "updates_per_s": sum(rates[f"updates {job.name}"] for job in jobs),
            "pushes": sum(job.pushes for job in jobs),
            "staleness_p50": quantile(histogram, 0.5),
            "staleness_p99": quantile(histogram, 0.99),
            "queued_updates": self.core.queued_updates,
            "queued_bytes": self.core.queued_bytes,
            "apply_busy": [min(rates[f"busy {number}"], 1.0) for number in range(self.core.threads)],
        }

    def _job_status(self, job: Job, rates: dict[str, float]) -> dict[str, Any]:
        if job.failed is not None:
            state = f"failed: {job.failed[1]}"
        else:
            state = "building" if job.building else "serving"
        return {
            "state": state,
            "buckets": len(job.buckets),
            "shards": len(job.shards),
            "bytes": job.size_bytes,
            "rule": job.rule.name,
            "updates": job.updates,
            "updates_per_s": rates[f"updates {job.name}"],
            "pushes": job.pushes,
            "pushes_per_s": rates[f"pushes {job.name}"],
            "refused": job.refused,
            "staleness_p50": job.staleness_quantile(0.5),
            "staleness_p99": job.staleness_quantile(0.99),
        }


_CARRY_OUT: dict[type[Any], Callable[[ParameterServer, Any], None]] = {
    Apply: ParameterServer._apply,
    Keep: ParameterServer._keep,
    AnswerPush: ParameterServer._answer_push,
    AnswerPull: ParameterServer._answer_pull,
    AnswerAttach: ParameterServer._answer_attach,
    Refuse: ParameterServer._refuse,
    Image: ParameterServer._image,
    Refresh: ParameterServer._refresh,
}


def _identity(view: JobView) -> tuple[Any, ...]:
    """What tells a job from another that was given the same name."""
    record = view.record
    return (view.revision, record.layout_hash, record.rule, record.seed, record.restore)


def thread_count(text: str) -> int:
    """Returns the number of apply threads that `--apply-threads` asks for; `auto` leaves half of the cores to others.

    0 means none: updates are applied on the event loop, which is for tests.

    Raises:
        ConfigurationError: neither `auto` nor a number.
    """
    if text == "auto":
        return max((os.cpu_count() or 1) // 2, 1)
    if not text.isdigit() or int(text) > THREADS_MAX:
        raise ConfigurationError(f"--apply-threads: expected auto or a number up to {THREADS_MAX}; found {text!r}")
    return int(text)


def memory_quota_bytes(text: str) -> int:
    """Returns the bytes that `--memory` allows: a size such as 8GB, or a share of this machine's memory such as 50%.

    Raises:
        ConfigurationError: neither of the two.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[KMGT]?B?)\s*", text, re.IGNORECASE)
    if found is None or float(found[1]) <= 0:
        raise ConfigurationError(f"--memory: expected a size such as 8GB or a share such as 50%; found {text!r}")
    amount, unit = float(found[1]), found[2].upper()
    if unit == "%":
        return int(psutil.virtual_memory().total * min(amount, 100.0) / 100)
    return int(amount * _UNITS[unit.rstrip("B")])
