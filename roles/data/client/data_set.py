"""An open data set as its readers know it, and the requests that one server answers about it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose, prod
from typing import Final

import msgspec

from adamctl.config.data import DataConfig
from adamctl.config.neighbours import data_for_neighbours
from adamctl.errors import (
    AdamctlError,
    ConfigurationError,
    DamagedDataError,
    ProtocolError,
    RemoteError,
    UnreachableError,
)
from adamctl.net.transport import Reply
from adamctl.roles.data.client.link import DataServerLink
from adamctl.roles.data.core import STILL_OPENING, files_changed
from adamctl.roles.data.form import DTYPES, ExampleForm
from adamctl.roles.data.scaling import Scaling
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import DataOpenReply, DataOpenRequest, DataReadRequest

ATTEMPT_S: Final = 20.0
_SHOWN_MAX: Final = 200
_TRY_ELSEWHERE: Final = (ErrorCode.OVER_QUOTA, ErrorCode.SHUTTING_DOWN, ErrorCode.NOT_READY, ErrorCode.DEADLINE_PASSED)


@dataclass(frozen=True)
class DataSet:
    """An open data set.

    Attributes:
        dataset: its name in reads.
        examples: train, validation and test mapped to their counts.
        dtype: of the values that servers send; `scaling` makes of them what a model is trained on.
        class_examples: how many training examples each of `classes` has.
        targets: how many numbers each example has to come close to; 0 where it has a class.
        by_block: servers decode it, and share it out by block; else each of them has all of it in memory.
    """

    dataset: str
    examples: dict[str, int]
    classes: tuple[str, ...]
    config: DataConfig
    input_shape: tuple[int, ...]
    seed: int
    dtype: str = "float32"
    scaling: Scaling = field(default_factory=Scaling)
    class_examples: tuple[int, ...] = ()
    targets: int = 0
    by_block: bool = False

    @property
    def form(self) -> ExampleForm:
        """How its examples are sent."""
        return ExampleForm(prod(self.input_shape), self.dtype, self.targets, self.config.targets == "inputs")


def data_set_of(
    reply: DataOpenReply, config: DataConfig, input_shape: tuple[int, ...], seed: int, server: str
) -> DataSet:
    """Raises ProtocolError: its values are of a type that this release does not know."""
    if reply.dtype not in DTYPES:
        raise ProtocolError(f"{server}: expected values of {' or '.join(DTYPES)}, found {reply.dtype!r}")
    return DataSet(
        reply.dataset,
        reply.examples,
        reply.classes,
        config,
        input_shape,
        seed,
        reply.dtype,
        Scaling(reply.factor, reply.shift),
        reply.class_examples,
        reply.targets,
        reply.by_block,
    )


def difference(one: DataSet, other: DataSet) -> tuple[str, str] | None:
    """Returns what of two data sets differs first, as each has it; None: they are the same.

    Machines of different kinds add up in different orders, so statistics may differ in their last digits.
    """
    for name in ("examples", "classes", "class_examples", "dtype", "targets", "by_block", "dataset"):
        mine, others = getattr(one, name), getattr(other, name)
        if mine != others:
            return _shown(name, mine), _shown(name, others)
    for name in ("factor", "shift"):
        mine, others = getattr(one.scaling, name), getattr(other.scaling, name)
        if not isclose(mine, others, rel_tol=1e-5):
            return _shown(f"scaling {name}", mine), _shown(f"scaling {name}", others)
    return None


def _shown(name: str, value: object) -> str:
    text = str(value)
    return f"{name} {text if len(text) <= _SHOWN_MAX else f'{text[:_SHOWN_MAX]} ...'}"


# --- of one server --------------------------------------------------------------------------------------------------


def opening(
    config: DataConfig, input_shape: tuple[int, ...], seed: int, *, again: bool = False
) -> tuple[DataOpenRequest, bytes]:
    """Returns the request that opens a data set, or with `again` asks about an open one, and its body."""
    request = DataOpenRequest(input_shape, seed, scales=True, again=again)
    return request, msgspec.msgpack.encode(data_for_neighbours(config))


async def open_on(
    server: DataServerLink,
    config: DataConfig,
    input_shape: tuple[int, ...],
    seed: int,
    deadline_s: float,
    *,
    again: bool = False,
) -> DataSet:
    """Opens a data set on one server, which is avoided for a while if it cannot.

    Args:
        again: if it is open there, its files are not looked at; if not, they must be those that were open before.

    Raises:
        ConfigurationError, DamagedDataError, RemoteError: what the server found; `elsewhere` of the last.
        ConfigurationError: with `again`, its files have changed.
        UnreachableError, ProtocolError: it did not answer, or not as it should.
    """
    request, body = opening(config, input_shape, seed, again=again)
    try:
        reply = await server.request(request, (body,), deadline_s=deadline_s)
    except RemoteError as error:
        if elsewhere(error):
            server.failed(asyncio.get_running_loop().time(), error)
        raise translated(error, server.name) from error
    except (UnreachableError, ProtocolError) as error:
        server.failed(asyncio.get_running_loop().time(), error)
        raise
    reply.release()
    found = reply.message
    assert isinstance(found, DataOpenReply)
    if again and files_changed(server.files.get(found.dataset, b""), found.files):
        raise ConfigurationError(f"{config.source}: the files on {server.name} have changed during the run")
    server.files[found.dataset] = found.files
    return data_set_of(found, config, input_shape, seed, server.name)


async def open_again(server: DataServerLink, data: DataSet, deadline_s: float) -> None:
    """Opens a data set again on a server that has restarted, has come, or needed the memory.

    Raises:
        ConfigurationError: it does not find the same data.
        Others as `open_on`.
    """
    found = await open_on(server, data.config, data.input_shape, data.seed, deadline_s, again=True)
    if differing := difference(data, found):
        raise ConfigurationError(
            f"the data on {server.name} has changed during the run: expected {differing[0]}, found {differing[1]}"
        )


async def request_range(
    server: DataServerLink,
    data: DataSet,
    request: DataReadRequest,
    deadline: float,
    body: Sequence[bytes] = (),
    into: Sequence[memoryview] | None = None,
) -> Reply:
    """Returns a server's answer to a read; it opens the data set again if it has forgotten it.

    Raises:
        Those of `open_again`, and RemoteError: BAD_RANGE.
        DamagedDataError: a file is damaged, or the server has opened other files meanwhile.
    """
    loop = asyncio.get_running_loop()
    for attempt in range(2):
        left_s = min(max(deadline - loop.time(), 0.001), ATTEMPT_S)
        of_its_files = msgspec.structs.replace(request, files=server.files.get(data.dataset, b""))
        try:
            return await server.request(of_its_files, body, deadline_s=left_s, into=into)
        except RemoteError as error:
            if error.code != ErrorCode.UNKNOWN_DATASET or attempt:
                raise translated(error, server.name) from error
            await open_again(server, data, max(deadline - loop.time(), 0.001))
    raise AssertionError("the second attempt returns or raises")


def elsewhere(error: BaseException) -> bool:
    """Whether a refusal is due to this server's present state, so that another one, or this one later, may answer."""
    return isinstance(error, RemoteError) and error.code in _TRY_ELSEWHERE


def being_opened(error: BaseException) -> bool:
    """Whether a server answers, and opens the data set or others first: then it is asked for as long as it does."""
    return isinstance(error, RemoteError) and (
        error.code == ErrorCode.OVER_QUOTA or (error.code == ErrorCode.NOT_READY and STILL_OPENING in error.details)
    )


def translated(error: RemoteError, server: str) -> AdamctlError:
    """Turns a server's refusal back into the error raised there, so that a command ends with its exit code."""
    kinds: dict[int, type[AdamctlError]] = {
        ErrorCode.BAD_CONFIGURATION: ConfigurationError,
        ErrorCode.DAMAGED_DATA: DamagedDataError,
    }
    kind = kinds.get(error.code)
    if kind is not None:
        return kind(f"{error} (data server {server})")
    return RemoteError(error.code, f"data server {server}: {error}", error.details)
