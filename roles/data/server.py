"""The data server: answers DATA_OPEN and DATA_READ, with the work done in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from adamctl.config.data import DataConfig
from adamctl.config.urls import checked_url, is_inside, is_url, without_file_scheme
from adamctl.errors import BackpressureError, ConfigurationError, ProtocolError, RemoteError, UnreachableError
from adamctl.net.handler import report_failure
from adamctl.net.transport import Request
from adamctl.roles.data.core import STILL_OPENING, Range, dataset_identity
from adamctl.roles.data.memory import memory_of_option
from adamctl.roles.data.order.ownership import Share
from adamctl.roles.data.preparing import Asked, ReadyRange
from adamctl.roles.data.readers.source import decodes
from adamctl.roles.data.sets.open_data_set import OpenDataSet
from adamctl.roles.data.store import DataStore
from adamctl.roles.rooted import PATH_CHARACTERS_MAX, Roots
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import DataOpenReply, DataOpenRequest, DataReadReply, DataReadRequest
from adamctl.wire.unreadable import UNREADABLE

if TYPE_CHECKING:
    from adamctl.roles.context import RoleContext

_OPENING_THREADS: Final = 2
_OPENING_MAX: Final = 64
_OPENING_PER_CONNECTION_MAX: Final = 4
_PUT_OFF_SHARE: Final = 0.9  # of the time that a requester waits
_CONFIGURATION = msgspec.msgpack.Decoder(DataConfig)


class _Key(NamedTuple):
    """What is being opened: the name of a data set, and whether it is only asked about."""

    name: str
    again: bool


@dataclass(eq=False)
class _Waiting:
    """A request that waits for a data set to be open. `timer`: when it is put off."""

    request: Request
    timer: asyncio.TimerHandle | None = None


class DataServer:
    """Serves one `DataStore`. All methods are called on the event loop's thread and do not block."""

    def __init__(self, store: DataStore, loop: asyncio.AbstractEventLoop, roots: Sequence[str] = ()) -> None:
        """`roots`: folders and URLs inside which other processes may name data."""
        self.store = store
        self._urls = tuple(root for root in roots if is_url(root))
        self._roots = Roots((root for root in roots if root not in self._urls), "--data-root")
        self._loop = loop
        self._openers = ThreadPoolExecutor(_OPENING_THREADS, thread_name_prefix="open")
        self._openings: dict[_Key, list[_Waiting]] = {}
        self._waiting = 0  # requests of all of them
        self._waiting_for: Counter[int] = Counter()  # by connection
        self._wait_s = 0.0

    def handle(self, request: Request) -> None:
        """Answers a request, now or when its work is done."""
        message = request.message
        if isinstance(message, DataReadRequest):
            self._read(request, message)
        elif isinstance(message, DataOpenRequest):
            self._open(request, message)
        else:
            request.fail(ErrorCode.UNKNOWN_OPCODE, f"a data server does not serve {type(message).__name__}")

    def status(self) -> dict[str, Any]:
        """Returns plain values; `wait_s` is how long all reads together waited for their ranges."""
        return self.store.status() | {"opening": len(self._openings), "wait_s": round(self._wait_s, 6)}

    def disconnected(self, connection_id: int) -> None:
        """A reader has gone: it waits for no data set, and has none open."""
        for key, waiting in self._openings.items():
            for gone in [each for each in waiting if each.request.connection_id == connection_id]:
                self._put_off(key, gone)
        self.store.left(connection_id)

    def close(self) -> None:
        """Stops the threads; unfinished requests are never answered. Blocks until the threads have ended."""
        self._openers.shutdown(cancel_futures=True)
        self.store.close()

    # --- reads ------------------------------------------------------------------------------------------------------

    def _read(self, request: Request, message: DataReadRequest) -> None:
        wanted = Range(message.split, message.pass_number, message.start, message.stop)
        share = Share(message.servers, message.receiver, bytes(request.body)) if message.servers else None

        asked_s = self._loop.time()

        def done(result: ReadyRange | Exception) -> None:
            self._post(partial(self._answer_late, request, result, asked_s))

        reader = request.connection_id
        ready = self.store.read(message.dataset, Asked(wanted, share), done, reader=reader, files=message.files)
        if ready is not None:
            self._answer_read(request, ready)

    def _answer_late(self, request: Request, result: ReadyRange | Exception, asked_s: float) -> None:
        self._wait_s += self._loop.time() - asked_s
        self._answer_read(request, result)

    def _answer_read(self, request: Request, result: ReadyRange | Exception) -> None:
        if isinstance(result, Exception):
            _refuse(request, result)
        elif self._loop.time() > request.deadline_s:
            result.release()
            request.fail(ErrorCode.DEADLINE_PASSED, "the range was ready too late")
        else:
            layout = result.layout
            reply = DataReadReply(result.examples, layout.labels_offset, layout.positions_offset)
            request.reply(reply, (result.body,), result.release)

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open(self, request: Request, message: DataOpenRequest) -> None:
        try:
            config = _CONFIGURATION.decode(request.body)
        except UNREADABLE as error:
            raise ProtocolError(f"expected a DataConfig in the body of DATA_OPEN: {error}") from error
        if not message.scales:
            raise ConfigurationError(
                "this data server sends values as they are in the files, and the reader is of a release that does not "
                "scale them: install one release of adamctl on all machines"
            )
        if self._waiting >= _OPENING_MAX or len(self._openings) >= _OPENING_MAX:
            raise BackpressureError(f"{_OPENING_MAX} data sets are being opened already; ask again later")
        if self._waiting_for[request.connection_id] >= _OPENING_PER_CONNECTION_MAX:
            raise BackpressureError(
                f"{_OPENING_PER_CONNECTION_MAX} of your data sets are being opened; ask again later"
            )
        # Named by the configuration as it was sent: links, current folders and roots may differ from server to server.
        key = _Key(dataset_identity(config, message.input_shape, message.seed), message.again)
        if key not in self._openings:
            self._openings[key] = []
            self._openers.submit(self._open_in_thread, key, config, message)
        self._waiting += 1
        self._waiting_for[request.connection_id] += 1
        waiting = _Waiting(request)
        self._openings[key].append(waiting)
        if request.deadline_s < inf:
            left_s = request.deadline_s - self._loop.time()
            waiting.timer = self._loop.call_later(left_s * _PUT_OFF_SHARE, self._put_off, key, waiting)

    def _open_in_thread(self, key: _Key, config: DataConfig, message: DataOpenRequest) -> None:
        result: OpenDataSet | Exception
        try:
            allowed = within_roots(config, self._roots, self._urls)
            result = self.store.open(allowed, message.input_shape, message.seed, name=key.name, again=key.again)
        except Exception as error:
            result = error
        self._post(partial(self._answer_open, key, result))

    def _put_off(self, key: _Key, waiting: _Waiting) -> None:
        """Says before a request's deadline that it takes longer, so that its sender asks again and gives nothing up."""
        self._openings[key].remove(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()
        self._waits_no_longer(waiting.request)
        text = "the data set is still being opened; ask again"
        waiting.request.fail(ErrorCode.NOT_READY, text, {STILL_OPENING: True})

    def _waits_no_longer(self, request: Request) -> None:
        self._waiting -= 1
        self._waiting_for[request.connection_id] -= 1
        self._waiting_for += Counter()  # drops those that are zero

    def _answer_open(self, key: _Key, result: OpenDataSet | Exception) -> None:
        for waiting in self._openings.pop(key):
            if waiting.timer is not None:
                waiting.timer.cancel()
            self._waits_no_longer(waiting.request)
            if isinstance(result, Exception):
                _refuse(waiting.request, result)
            else:
                self.store.came(waiting.request.connection_id, result)
                waiting.request.reply(_opened(result, self.store.files_of(result)))

    def _post(self, action: Callable[[], None]) -> None:
        """Runs an action on the event loop, unless the loop has ended meanwhile."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)


def _opened(dataset: OpenDataSet, files: bytes) -> DataOpenReply:
    form, scaling = dataset.form, dataset.scaling
    return DataOpenReply(
        dataset.name,
        dataset.examples,
        dataset.classes,
        form.dtype,
        scaling.factor,
        scaling.shift,
        dataset.class_examples,
        form.targets,
        decodes(dataset.source),
        dataset.read_bytes,
        files,
    )


def _refuse(request: Request, error: Exception) -> None:
    """Answers with an error. Where data could not be fetched, another server may have them, or this one later."""
    if isinstance(error, UnreachableError):
        request.fail(ErrorCode.NOT_READY, str(error))
    else:
        report_failure(request, error)


def within_roots(config: DataConfig, roots: Roots, urls: Sequence[str] = ()) -> DataConfig:
    """Returns the configuration without the search folders that lie outside the roots; `urls` are roots, too.

    A URL is fetched only if it is one of the roots or below one: whoever may ask a server for data must not make it
    call any address, with the server's credentials.

    Raises:
        RemoteError: NOT_ALLOWED, its source is a path or a URL outside the roots.
    """
    for text in (config.source, config.alignment, config.test_files):
        if "\0" in text or len(text) > PATH_CHARACTERS_MAX:
            raise RemoteError(ErrorCode.NOT_ALLOWED, f"{text[:200]!a} can be the name of no file here")
    if is_url(config.source):
        if not is_inside(checked_url(config.source), urls):
            raise RemoteError(
                ErrorCode.NOT_ALLOWED,
                f"{config.source[:200]!a} is none of the URLs given by --data-root, and below none; add it there",
            )
        return config
    source = without_file_scheme(config.source)
    if config.format != "digits" and ("/" in source or source.startswith("~") or source in (".", "..")):
        source = roots.inside(source)
    search = tuple(found for found in map(roots.found_inside, config.search) if found)
    return msgspec.structs.replace(config, source=source, search=search)


async def run(context: RoleContext) -> None:
    """Runs the role until it is asked to stop."""
    options = context.options
    threads = options.get("threads") or max(1, (os.cpu_count() or 2) // 2)
    ahead = options.get("ahead")
    memory = memory_of_option(options.get("memory"))
    store = DataStore(
        options.get("data") or (),
        threads=threads,
        ahead=8 if ahead is None else ahead,
        memory_bytes=None if memory is None else memory.examples_bytes,
        buffers_bytes=None if memory is None else memory.buffers_bytes,
    )
    roots = options.get("data_root") or (*(options.get("data") or ()), ".")
    server = DataServer(store, asyncio.get_running_loop(), roots)
    context.status = server.status
    try:
        listening = await context.serve(server.handle, on_disconnect=server.disconnected)
        try:
            await context.stopping.wait()
        finally:
            await listening.close()
    finally:
        await asyncio.get_running_loop().run_in_executor(None, server.close)
