"""`AsyncParameterClient`: named arrays on parameter servers, for any framework, in asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adamctl.api.parameter_client.arrays import Arrays, NamedArrays, as_array
from adamctl.api.parameter_client.buffers import RegisteredArrays, Staged
from adamctl.api.parameter_client.job import (
    FoundJob,
    check_deadline,
    find_or_make,
    is_over,
    left_s,
    parse_url,
    rule_config,
    told,
)
from adamctl.api.parameter_client.renewal import RENEWALS_MAX, FormerClients, Identity, evicted, push_again
from adamctl.api.parameter_client.values import give_values, wait_for_values
from adamctl.config.experiment import OptimizerConfig
from adamctl.config.records import Acks
from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    DeadlineError,
    NotFiniteError,
    RemoteError,
    UnreachableError,
)
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.credentials import FROM_ENVIRONMENT, Credentials
from adamctl.net.token_file import environment_token
from adamctl.roles.coordinator.job import end_job
from adamctl.roles.ps.client.parameter_client import ParameterClient as ServersClient
from adamctl.roles.ps.client.parameter_client import PendingPush, Pulled
from adamctl.roles.ps.client.route_table import check_connections
from adamctl.roles.ps.client.wire_choice import check_wire_types
from adamctl.wire.constants import UpdateKind

log = logging.getLogger("adamctl.api")


class AsyncParameterClient:
    """A set of named float32 arrays on the parameter servers of a cluster, shared with other clients of one job.

        async with AsyncParameterClient("adam://head:7070/mine") as ps:
            params = await ps.register({"w": w, "b": b}, rule=adam.Adagrad(0.05))
            await ps.push({"w": dw, "b": db})
            params = await ps.pull()

    Make all calls on one event loop. Calls raise UnreachableError if nothing answers, HandshakeError for a wrong token,
    ConfigurationError for arrays or settings that do not fit, NotFiniteError for NaN or infinite values, RunFailedError
    once the job has ended. If a push fails after `push` has returned, the next call raises its error, once.

    Attributes:
        job: the job's full name, after `register`.
        created: whether this client created the job and gave its initial values.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline_s: float = 60.0,
        pushes_max: int = 4,
        wire_push: WireType = "float32",
        wire_pull: WireType = "float32",
        connections: int = 1,
        tls_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Args:
        url: `adam://HOST:PORT/JOB`, the address of a controller (of several, separated by commas) and a job's name; or
            `etcd://HOST:PORT[,...][/PREFIX]/JOB`, an etcd cluster instead, in the form of `--config-store`, and a job's
            name.
        token: the cluster's secret; default: the content of the file that ADAMCTL_TOKEN_FILE names, else ADAMCTL_TOKEN.
        deadline_s: seconds that a call may wait.
        pushes_max: largest number of unacknowledged pushes; a further push waits.
        wire_push: type of pushed numbers on the wire: `float32`, or `bfloat16` or `float16`, which halve the bytes. The
            rounding error of a push is added to this client's next push of the same array.
        wire_pull: type of pulled values on the wire; `register` always returns float32.
        connections: connections to each server, 1 to 16; use several if one cannot fill the network.
        tls_dir: folder of a certificate for a client or an operator, to speak TLS (docs/tls.md); default: ADAMCTL_TLS.

        Raises:
            ConfigurationError: the address is malformed, `deadline_s`, `pushes_max` or `connections` out of range, a
                wire type unknown, or a package needed for etcd not installed.
        """
        self._addresses, self._wanted = parse_url(url)
        check_deadline(deadline_s)
        if pushes_max < 1:
            raise ConfigurationError(f"pushes_max: expected at least 1; found {pushes_max}")
        check_wire_types(wire_push, wire_pull)
        check_connections(connections)
        self.job, self.created = "", False
        self._deadline_s, self._pushes_max = deadline_s, pushes_max
        self._wire: dict[str, Any] = {"wire_push": wire_push, "wire_pull": wire_pull, "connections": connections}
        self._transport = StreamTransport(tls=FROM_ENVIRONMENT if tls_dir is None else Credentials(Path(tls_dir)))
        token = environment_token(os.environ) if token is None else token
        self._identity = Identity(self._transport, self._addresses, token, deadline_s)
        self._store = self._identity.store
        self._servers: ServersClient | None = None
        self._arrays: RegisteredArrays
        self._pulled: Pulled
        self._pending: set[asyncio.Task[None]] = set()
        self._failure: AdamctlError | None = None
        self._pulling, self._renewing = asyncio.Lock(), asyncio.Lock()
        self._former = FormerClients(self._pulling)

    async def __aenter__(self) -> AsyncParameterClient:
        await self.connect()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(wait=kind is None)

    @property
    def rolled_back(self) -> int:
        """Number of this client's acknowledged shard updates that were lost when servers restarted from stores."""
        return self._former.rolled_back + (0 if self._servers is None else self._servers.rollbacks.numbers)

    # --- connect and close -------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Becomes a member of the cluster. Raises UnreachableError, HandshakeError."""
        await self._identity.begin()

    def _client_of(self, job: str) -> ServersClient:
        """Returns a client of a job's servers, which keeps this client's present identity."""
        hello = self._identity.hello()
        return ServersClient(self._transport, lambda: hello, self._store, job, notice=log.warning, **self._wire)

    async def close(self, end: bool = False, *, wait: bool = True) -> None:
        """Waits for pushes (unless `wait` is false), leaves the cluster, and with `end` ends the job for all clients.

        Raises:
            AdamctlError: as `wait`; everything is closed anyway.
        """
        try:
            if wait and self._servers is not None:
                await self.wait()
        finally:
            await self._close(end)

    async def _close(self, end: bool) -> None:
        await self._identity.end_beacons()
        if self._servers is not None:
            await self._former.close()
            await self._servers.close()
            await asyncio.gather(*self._pending, return_exceptions=True)
        try:
            if end and self.job:
                await end_job(self._store, self.job)
            await self._identity.leave()
        except UnreachableError as error:
            if end:
                raise
            log.info("could not leave the cluster cleanly: %s", error)
        finally:
            self._servers = None
            await self._store.close()

    # --- register ----------------------------------------------------------------------------------------------------

    async def register(
        self,
        params: Arrays = None,
        rule: OptimizerConfig | RuleConfig | None = None,
        *,
        servers: int | None = None,
        acks: Acks | None = None,
        replication: int | None = None,
    ) -> Arrays:
        """Joins the job, or creates it if there is none; returns its values, nested as `params`. Once per client.

        The client that creates the job gives the initial values; all others get the job's. Returned arrays are float32
        views of one vector that `pull` overwrites.

        Args:
            params: dict, list or tuple of arrays, nested in any way; None joins an existing job, whatever its arrays,
                and returns a dict by name.
            rule: how servers apply gradients (`adam.SGD`, `Momentum`, `Adagrad`, `RMSProp`, `Adam`) and this client's
                learning rate. None uses the job's rule; a new job then adds what is pushed.
            servers: how many parameter servers a new job gets; default: all present ones.
            acks: `applied` acknowledges a push once it is in a server's memory (default with one copy), `replicated`
                once it is in the memory of every in-sync copy (default with several), `durable` once it is on the disk
                of each.
            replication: copies of each part of a new job, on different servers, 1 (default) to 3; with several, pushes
                and pulls continue when a server dies.

        Raises:
            ConfigurationError: the job has other arrays or another rule, or an argument is malformed.
            NotFiniteError: an initial value is NaN or infinite.
            UnreachableError: no server, or no job, was found within the deadline.
        """
        if self._servers is not None:
            raise ConfigurationError("register: expected one call per client; make another client for another job")
        names = None if params is None else NamedArrays(params)
        given = {} if names is None else {n: as_array(value, n) for n, value in names.matched(params)}
        for name, array in given.items():
            if not np.isfinite(array).all():
                raise NotFiniteError(f"{name}: expected finite initial values; found NaN or infinite ones")
        config = rule_config(rule)
        learning_rate = rule.lr if isinstance(rule, OptimizerConfig) else None
        shapes = None if names is None else names.shapes
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._deadline_s
        while True:
            wanted = (self._wanted, shapes, config, servers, acks, replication)
            found = await find_or_make(self._store, *wanted, self._identity.node, left_s(until_s))
            if await self._begin(found, names, given, learning_rate, left_s(until_s)):
                return self._arrays.nested()
            if loop.time() >= until_s:
                raise DeadlineError(f"job {found.name!r}: the servers had not loaded it after {self._deadline_s:g} s")

    async def _begin(
        self,
        found: FoundJob,
        names: NamedArrays | None,
        given: dict[str, NDArray[Any]],
        learning_rate: float | None,
        deadline_s: float,
    ) -> bool:
        """Attaches to a job and gives or gets its values; False if that job failed before it had values."""
        servers = self._client_of(found.name)
        try:
            await servers.attach(deadline_s=deadline_s)
            rule = found.record.rule
            arrays = RegisteredArrays(servers.layout, names, rule, learning_rate, servers.shared.new_array)
            if found.created:
                await give_values(servers, arrays, given, deadline_s)
            else:
                await wait_for_values(self._store, servers, arrays, found, self._identity.node, deadline_s)
            self._pulled = await servers.pull(arrays.flat, deadline_s=deadline_s, exact=True)
        except BaseException as error:
            await servers.close()
            if isinstance(error, RemoteError) and is_over(error) and not found.created:
                return False
            if found.created:
                await asyncio.shield(end_job(self._store, found.name))
            raise
        self._servers, self._arrays = servers, arrays
        self.job, self.created = found.name, found.created
        return True

    # --- push --------------------------------------------------------------------------------------------------------

    async def push(
        self, gradients: Arrays, learning_rate: float | None = None, *, examples: int = 0, copy: bool = True
    ) -> None:
        """Sends gradients for the servers' rule to apply; returns when they are queued to be sent.

        Args:
            gradients: nested as registered; arrays that are None or left out of a dict are not touched.
            learning_rate: default: that of the rule given to `register`.
            examples: number of examples they were computed from, for statistics.
            copy: False lends the arrays, which must be float32 and C-contiguous, until `wait` has returned.

        Raises:
            NotFiniteError: a value is NaN or infinite; nothing is sent.
            ConfigurationError: names or shapes differ from those registered, or no learning rate is known.
            DeadlineError: `pushes_max` pushes are unacknowledged, and none was acknowledged within the deadline.
        """
        await self.submit(self.stage(gradients, UpdateKind.GRADIENT, learning_rate, examples, copy))

    async def add(self, deltas: Arrays, *, copy: bool = True) -> None:
        """Like `push`, but the servers add the values unchanged, whatever the job's rule."""
        await self.submit(self.stage(deltas, UpdateKind.DELTA, 0.0, 0, copy))

    def stage(self, values: Arrays, kind: UpdateKind, learning_rate: float | None, examples: int, copy: bool) -> Staged:
        """Checks and copies values to be pushed; may be called in another thread. Raises as `push`."""
        self._registered()
        return self._arrays.stage(values, kind, learning_rate, examples, copy, self._pulled.base)

    async def submit(self, staged: Staged) -> None:
        """Sends staged values, in call order. Raises as `push`."""
        until_s = asyncio.get_running_loop().time() + self._deadline_s
        try:
            self._raise_failure()
            if not self._identity.listed and await self._identity.may_join_again(self._pending, self._deadline_s):
                with suppress(AdamctlError):  # no controller answers; servers still know this client
                    await self._renewed(self._registered(), left_s(until_s))
            if len(self._pending) >= self._pushes_max:
                done, _ = await asyncio.wait(
                    self._pending, timeout=left_s(until_s), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    what = f"{len(self._pending)} pushes were not acknowledged within {self._deadline_s:g} s"
                    raise DeadlineError(f"job {self.job!r}: {what}; they are still being sent")
                self._raise_failure()
            servers = self._registered()  # while this waited, it may have been replaced
            pending = servers.start_push(staged.push)
        except BaseException:
            self._arrays.give_back(staged)
            raise
        task = asyncio.create_task(self._settle(servers, pending, staged))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _settle(self, servers: ServersClient, pending: PendingPush, staged: Staged) -> None:
        try:
            refused = (await pending).refused
            for _ in range(RENEWALS_MAX):
                parts = evicted(refused)
                if not parts:
                    break
                servers = await self._renewed(servers, self._deadline_s)
                again = await push_again(servers, staged.push, parts)
                refused = (*(part for part in refused if part not in parts), *again.refused)
            if refused:
                raise self._arrays.refusal(refused[0])
        except BaseException as error:
            self._failure = self._failure or told(self.job, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._arrays.give_back(staged)

    async def _renewed(self, forgotten: ServersClient, deadline_s: float) -> ServersClient:
        """Returns the replacement for a client that servers have forgotten, or will: one with a new incarnation."""
        async with self._renewing:
            if self._servers is not forgotten:
                return self._registered()
            log.warning("job %s: this client was given up; joining again", self.job)
            await self._identity.restart()
            servers = self._client_of(self.job)
            servers.shared = forgotten.shared
            try:
                await servers.attach(deadline_s=deadline_s)
            except BaseException:
                await servers.close()
                raise
            self._servers = servers
            self._former.add(forgotten)  # other pushes of it may still be in flight
            return servers

    async def wait(self) -> None:
        """Returns when every push is acknowledged, that is, applied.

        Raises:
            DeadlineError: not all were acknowledged within the deadline; they are still being sent.
            AdamctlError: the error of a failed push.
        """
        self._registered()
        if self._pending:
            _, left = await asyncio.wait(set(self._pending), timeout=self._deadline_s)
            if left:
                what = f"{len(left)} pushes were not acknowledged within {self._deadline_s:g} s"
                raise DeadlineError(f"job {self.job!r}: {what}; they are still being sent")
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _registered(self) -> ServersClient:
        if self._servers is None:
            raise ConfigurationError("expected a registered client; call register before you push or pull")
        return self._servers

    # --- pull --------------------------------------------------------------------------------------------------------

    async def pull(self, into: Arrays = None) -> Arrays:
        """Returns the servers' present values, nested as registered: each shard of an array at one version, never torn.

        Pushes that are not acknowledged yet may be missing; call `wait` first if that matters.

        Args:
            into: arrays to write to, nested as registered (some may be left out). Arrays that `register` returned are
                filled without a copy. Default: those arrays, which the next pull overwrites.

        Raises:
            DeadlineError: the servers did not answer in time.
            ConfigurationError: `into` has other names or shapes, or what NumPy can only copy, such as lists of numbers.
        """
        self._raise_failure()
        self._registered()
        targets = [] if into is None else self._arrays.targets(into)
        async with self._pulling:
            try:
                self._pulled = await self._registered().pull(self._arrays.flat, deadline_s=self._deadline_s)
            except RemoteError as error:
                raise told(self.job, error) from error
            for name, target in targets:
                view = self._arrays.view(name)
                if target.ctypes.data != view.ctypes.data:
                    np.copyto(target, view, casting="same_kind")
        return self._arrays.nested() if into is None else into
