"""`ParameterClient`: named arrays on parameter servers, for any framework, with blocking calls."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from adamctl.api.parameter_client.arrays import Arrays
from adamctl.api.parameter_client.asynchronous import AsyncParameterClient
from adamctl.config.experiment import OptimizerConfig
from adamctl.config.records import Acks
from adamctl.errors import ConfigurationError
from adamctl.model.rule import RuleConfig
from adamctl.model.wire_types import WireType
from adamctl.net.loop import new_event_loop
from adamctl.wire.constants import UpdateKind

Result = TypeVar("Result")
JOIN_DEADLINE_S = 5.0


class ParameterClient:
    """A set of named float32 arrays on the parameter servers of a cluster, shared with other clients of one job.

        with ParameterClient("adam://head:7070/mine") as ps:
            params = ps.register({"w": w, "b": b}, rule=adam.Adagrad(0.05))
            ps.push({"w": dw, "b": db})
            params = ps.pull()

    Its own thread sends and receives, so pushes are sent while you compute. Calls and their errors are those of
    `AsyncParameterClient`. Call it from one thread at a time; a forked process needs its own client.
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
        """Connects to the controller at `url`, `adam://HOST:PORT/JOB`, or to etcd, `etcd://HOST:PORT/JOB`; takes the
        arguments of `AsyncParameterClient`.

        Raises:
            ConfigurationError: the address is malformed, or a wire type is unknown.
            UnreachableError: no controller or etcd answers there.
            HandshakeError: the controller refuses us: wrong token or version.
        """
        self._pid = os.getpid()
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name="adamctl-client", daemon=True)
        self._thread.start()
        atexit.register(self._stop)
        try:
            options = {"token": token, "deadline_s": deadline_s, "pushes_max": pushes_max, "connections": connections}
            wire = {"wire_push": wire_push, "wire_pull": wire_pull, "tls_dir": tls_dir}
            self._client = self._call(self._make(url, **wire, **options))
        except BaseException:
            self._stop()
            raise

    @staticmethod
    async def _make(url: str, **options: Any) -> AsyncParameterClient:
        client = AsyncParameterClient(url, **options)
        await client.connect()
        return client

    def __enter__(self) -> ParameterClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._thread.is_alive():
            self._close(end=False, wait=kind is None)

    @property
    def job(self) -> str:
        """The job's full name, after `register`."""
        return self._client.job

    @property
    def created(self) -> bool:
        """Whether this client created the job and gave its initial values."""
        return self._client.created

    @property
    def rolled_back(self) -> int:
        """Number of this client's acknowledged shard updates that were lost when servers restarted from stores."""
        return self._client.rolled_back

    def register(
        self,
        params: Arrays = None,
        rule: OptimizerConfig | RuleConfig | None = None,
        *,
        servers: int | None = None,
        acks: Acks | None = None,
        replication: int | None = None,
    ) -> Arrays:
        """Joins the job, or creates it if there is none; returns its values, nested as `params`."""
        register = self._client.register(params, rule, servers=servers, acks=acks, replication=replication)
        return self._call(register)

    def push(
        self, gradients: Arrays, learning_rate: float | None = None, *, examples: int = 0, copy: bool = True
    ) -> None:
        """Sends gradients for the servers' rule to apply; returns when they are queued to be sent."""
        self._submit(gradients, UpdateKind.GRADIENT, learning_rate, examples, copy)

    def add(self, deltas: Arrays, *, copy: bool = True) -> None:
        """Like `push`, but the servers add the values unchanged, whatever the job's rule."""
        self._submit(deltas, UpdateKind.DELTA, 0.0, 0, copy)

    def pull(self, into: Arrays = None) -> Arrays:
        """Returns the servers' present values, in the arrays that `register` returned or in the given ones."""
        return self._call(self._client.pull(into))

    def wait(self) -> None:
        """Returns when every push is acknowledged, that is, applied."""
        self._call(self._client.wait())

    def close(self, end: bool = False) -> None:
        """Waits for pushes, leaves the cluster, and with `end` ends the job for all. A second call does nothing."""
        if self._thread.is_alive():
            self._close(end, wait=True)

    # --- the other thread --------------------------------------------------------------------------------------------

    def _close(self, end: bool, wait: bool) -> None:
        try:
            self._call(self._client.close(end, wait=wait))
        finally:
            self._stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _submit(self, values: Arrays, kind: UpdateKind, learning_rate: float | None, examples: int, copy: bool) -> None:
        self._check()  # what is copied here would be seen by the process that it was forked from
        # Copied here, not in the other thread, which continues to send earlier pushes.
        self._call(self._client.submit(self._client.stage(values, kind, learning_rate, examples, copy)))

    def _check(self) -> None:
        """Raises ConfigurationError: it is closed, or this is a forked process."""
        forked = os.getpid() != self._pid
        if forked or not self._thread.is_alive():
            why = "it was made in another process; make one in each" if forked else "it is closed; make another"
            raise ConfigurationError(f"this ParameterClient cannot be used: {why}")

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        try:
            self._check()
        except ConfigurationError:
            work.close()
            raise
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupt: nothing waits for it any more
            raise

    def _stop(self) -> None:
        atexit.unregister(self._stop)
        if os.getpid() == self._pid and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(JOIN_DEADLINE_S)
