"""The parameter layout of a job: its tensors, cut into shards and buckets, and the placement of buckets.

It is a pure function of the model and the expected number of servers, so that every role derives the same layout and
only its hash needs to be compared. Counts are elements (float32) unless a name ends in `_bytes`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod, sqrt
from typing import Literal, TypeAlias

import msgspec

from adamctl.errors import ConfigurationError
from adamctl.model.description import Conv2D, Dense, Initializer, Local2D, Logistic, Model, Softmax, pair
from adamctl.model.shapes import infer

SHARD_BYTES_MAX = 1 << 20
ELEMENT_BYTES = 4
BUCKETS_PER_SERVER = 10
SERVERS_MAX = 1 << 16
TENSORS_MAX = 1 << 16
DIMENSIONS_MAX = 16
ELEMENTS_MAX = 1 << 40
SHARDS_MAX = 1 << 18
"""Most shards of a job: at 1 MiB each, 256 GiB of parameters."""
NAME_CHARACTERS_MAX = 1024
ALIGNMENT = 16  # elements: every tensor starts on its own 64-byte cache line

Distribution = Literal["normal", "uniform", "zeros", "given", "constant"]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One named parameter array, axis 0 its outputs.

    `offset` is where it starts in a flat float32 vector of the whole model. Initial values are drawn from
    `distribution` with `scale` (standard deviation of a normal one, half-width of a uniform one, value of a constant
    one); `given` tensors start at zero, and the first push of the client that created the job adds their values.
    """

    name: str
    layer: int
    shape: tuple[int, ...]
    offset: int
    distribution: Distribution
    scale: float
    dtype: str = "float32"

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def row_size(self) -> int:
        """Elements in one row of axis 0."""
        return self.size // self.shape[0]


class Shard(msgspec.Struct, frozen=True, array_like=True):
    """Rows [row_start, row_stop) of one tensor. `offset` and `size` locate it in the flat vector."""

    index: int
    tensor: int
    row_start: int
    row_stop: int
    offset: int
    size: int


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """Shards [shard_start, shard_stop), adjacent and in one layer."""

    index: int
    shard_start: int
    shard_stop: int
    size_bytes: int


@dataclass(frozen=True)
class ParameterLayout:
    """The ordered tensors of a job, cut into shards and buckets; equal hashes mean equal layouts."""

    tensors: tuple[Tensor, ...]
    shards: tuple[Shard, ...]
    buckets: tuple[Bucket, ...]

    @cached_property
    def hash(self) -> str:
        """Hex digest over names, shapes, dtypes, offsets and cuts; checked whenever a client attaches to a job."""
        material = msgspec.msgpack.encode(
            [[(t.name, t.layer, t.shape, t.offset, t.dtype) for t in self.tensors], self.shards, self.buckets]
        )
        return hashlib.blake2b(material, digest_size=16).hexdigest()

    @property
    def flat_size(self) -> int:
        """Elements of the flat vector, padding included."""
        last = self.tensors[-1]
        return _aligned(last.offset + last.size)

    @property
    def parameter_count(self) -> int:
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def bucket_of_shard(self) -> tuple[int, ...]:
        return tuple(b.index for b in self.buckets for _ in range(b.shard_start, b.shard_stop))

    def shards_of(self, bucket: Bucket) -> tuple[Shard, ...]:
        return self.shards[bucket.shard_start : bucket.shard_stop]

    def layer_of(self, bucket: Bucket) -> int:
        return self.tensors[self.shards[bucket.shard_start].tensor].layer


def build_layout(model: Model, servers_expected: int) -> ParameterLayout:
    """Returns the layout of a model for a job that expects this many parameter servers.

    Raises:
        ConfigurationError: the layers do not fit together, or the model has no parameters.
    """
    tensors = tensors_of(model)
    if not tensors:
        raise ConfigurationError("model.layers: expected at least one layer with parameters; found none")
    return cut_layout(tensors, servers_expected)


def cut_layout(tensors: tuple[Tensor, ...], servers_expected: int) -> ParameterLayout:
    """Cuts tensors into shards of at most 1 MiB, in at least ten buckets per server where rows allow.

    Raises:
        ConfigurationError: no server, no tensor, tensors that overlap or are empty, or a limit is exceeded. Nothing has
            been allocated then.
    """
    if servers_expected < 1:
        raise ConfigurationError(f"cluster.ps: expected at least 1 server; found {servers_expected}")
    if servers_expected > SERVERS_MAX:
        raise ConfigurationError(f"cluster.ps: expected at most {SERVERS_MAX} servers; found {servers_expected}")
    _check_tensors(tensors)
    total_bytes = sum(tensor.size for tensor in tensors) * ELEMENT_BYTES
    bucket_bytes_max = max(total_bytes // (BUCKETS_PER_SERVER * servers_expected), 1)
    shard_size_max = min(SHARD_BYTES_MAX, bucket_bytes_max) // ELEMENT_BYTES
    count = sum(-(-tensor.shape[0] // max(shard_size_max // tensor.row_size, 1)) for tensor in tensors)
    if count > SHARDS_MAX:
        raise ConfigurationError(
            f"expected parameters in at most {SHARDS_MAX} shards; found {count} of {total_bytes} bytes"
        )
    shards: list[Shard] = []
    for number, tensor in enumerate(tensors):
        rows = max(shard_size_max // tensor.row_size, 1)
        for start in range(0, tensor.shape[0], rows):
            stop = min(start + rows, tensor.shape[0])
            offset = tensor.offset + start * tensor.row_size
            shards.append(Shard(len(shards), number, start, stop, offset, (stop - start) * tensor.row_size))
    return ParameterLayout(tensors, tuple(shards), _buckets(tensors, shards, bucket_bytes_max))


def _check_tensors(tensors: tuple[Tensor, ...]) -> None:
    if not 1 <= len(tensors) <= TENSORS_MAX:
        raise ConfigurationError(f"expected 1 to {TENSORS_MAX} parameter tensors; found {len(tensors)}")
    stop = layer = 0
    for tensor in tensors:
        name = tensor.name[:80]
        if len(tensor.name) > NAME_CHARACTERS_MAX:
            raise ConfigurationError(
                f"expected a tensor name of at most {NAME_CHARACTERS_MAX} characters; found {name!a}"
            )
        if not 1 <= len(tensor.shape) <= DIMENSIONS_MAX or not all(
            1 <= extent <= ELEMENTS_MAX for extent in tensor.shape
        ):
            shape = str(tensor.shape)[:80]
            raise ConfigurationError(
                f"tensor {name!a}: expected 1 to {DIMENSIONS_MAX} extents of at least 1; found {shape}"
            )
        if not stop <= tensor.offset <= tensor.offset + tensor.size <= ELEMENTS_MAX:
            raise ConfigurationError(
                f"tensor {name!a}: expected {tensor.size} elements from {stop} to at most {ELEMENTS_MAX}; found offset "
                f"{tensor.offset}"
            )
        if not layer <= tensor.layer <= TENSORS_MAX:
            raise ConfigurationError(f"tensor {name!a}: expected tensors in layer order; found layer {tensor.layer}")
        is_scale = isfinite(tensor.scale) and (tensor.scale >= 0 or tensor.distribution == "constant")
        if tensor.dtype != "float32" or not is_scale:
            found = f"{tensor.dtype[:80]!a}, {tensor.scale}"
            raise ConfigurationError(f"tensor {name!a}: expected float32 and a scale of at least 0; found {found}")
        stop, layer = tensor.offset + tensor.size, tensor.layer


def _buckets(tensors: tuple[Tensor, ...], shards: list[Shard], bucket_bytes_max: int) -> tuple[Bucket, ...]:
    buckets: list[Bucket] = []
    start, filled_bytes = 0, 0
    for shard in shards:
        size_bytes = shard.size * ELEMENT_BYTES
        new_layer = tensors[shard.tensor].layer != tensors[shards[start].tensor].layer
        if shard.index > start and (new_layer or filled_bytes + size_bytes > bucket_bytes_max):
            buckets.append(Bucket(len(buckets), start, shard.index, filled_bytes))
            start, filled_bytes = shard.index, 0
        filled_bytes += size_bytes
    buckets.append(Bucket(len(buckets), start, len(shards), filled_bytes))
    return tuple(buckets)


def place_buckets(layout: ParameterLayout, job: str, servers: list[str]) -> dict[int, str]:
    """Returns bucket index -> server: each bucket goes to the server with the fewest bytes, smallest layers first.

    So servers differ by at most one bucket. A server with a part of a small layer, which is often pushed as a whole, is
    skipped by the next layers, each of which sends all of its activations to every server that holds a part.
    A stable hash of (job, bucket, server) breaks ties, so that every caller gets the same placement and jobs spread
    differently.
    """
    if not servers:
        raise ConfigurationError("expected at least one parameter server to place buckets on; found none")
    layer_bytes: dict[int, int] = {}
    for bucket in layout.buckets:
        layer_bytes[layout.layer_of(bucket)] = layer_bytes.get(layout.layer_of(bucket), 0) + bucket.size_bytes
    load_bytes = dict.fromkeys(sorted(servers), 0)
    placement: dict[int, str] = {}
    for bucket in sorted(layout.buckets, key=lambda b: (layer_bytes[layout.layer_of(b)], -b.size_bytes, b.index)):
        chosen = min(load_bytes, key=lambda server: (load_bytes[server], _tie(job, bucket.index, server)))
        placement[bucket.index] = chosen
        load_bytes[chosen] += bucket.size_bytes
    return placement


def place_copies(layout: ParameterLayout, job: str, servers: list[str], copies: int) -> dict[int, tuple[str, ...]]:
    """Returns bucket index -> `copies` different servers: the primary, as in `place_buckets`, then the others.

    The next server in order takes over when a primary dies. So the second copies of a primary's buckets are spread over
    all other servers, which share a dead server's load evenly; if that leaves a choice, a copy goes to the server with
    the fewest bytes. Third copies are spread the same way, for each pair of first and second.

    Raises:
        ConfigurationError: there are fewer servers than copies.
    """
    if copies > len(servers):
        raise ConfigurationError(
            f"cluster.replication: found {copies} copies on {len(servers)} servers; expected at most cluster.ps"
        )
    primaries = place_buckets(layout, job, servers)
    placement: dict[int, tuple[str, ...]] = {index: (primary,) for index, primary in primaries.items()}
    held_bytes = dict.fromkeys(sorted(servers), 0)  # without the primaries, which are already even
    largest_first = sorted(layout.buckets, key=lambda bucket: (-bucket.size_bytes, bucket.index))
    for _ in range(1, copies):
        follows_bytes: dict[tuple[str, ...], int] = {}
        for bucket in largest_first:
            there = placement[bucket.index]
            free = [server for server in held_bytes if server not in there]
            ties = {server: _tie(job, bucket.index, server) for server in free}
            chosen = min(
                free, key=lambda server: (follows_bytes.get((*there, server), 0), held_bytes[server], ties[server])
            )
            placement[bucket.index] = (*there, chosen)
            follows_bytes[*there, chosen] = follows_bytes.get((*there, chosen), 0) + bucket.size_bytes
            held_bytes[chosen] += bucket.size_bytes
    return placement


def _tie(job: str, bucket: int, server: str) -> bytes:
    return hashlib.blake2b(f"{job}/{bucket}/{server}".encode(), digest_size=8).digest()


def tensors_of(model: Model) -> tuple[Tensor, ...]:
    """Returns the parameters of a model in order: weight, then bias, of each layer that has them.

    Raises:
        ConfigurationError: the layers do not fit together.
    """
    tensors: list[Tensor] = []
    offset = 0
    for shape in infer(model):
        layer = shape.layer
        if isinstance(layer, (Conv2D, Local2D)):
            groups = layer.groups if isinstance(layer, Conv2D) else 1
            window: tuple[int, ...] = (*pair(layer.kernel), shape.input[2] // groups)
            outputs = (layer.filters,) if isinstance(layer, Conv2D) else shape.output
            fan_out = prod(pair(layer.kernel)) * layer.filters // groups
        elif isinstance(layer, (Dense, Softmax, Logistic)):
            window, outputs, fan_out = (prod(shape.input),), (layer.units,), layer.units
        else:
            continue
        activation = None if isinstance(layer, (Softmax, Logistic)) else layer.activation
        init = layer.init if layer.init is not None else "he" if activation == "relu" else "glorot"
        weight, bias = _initial(init, prod(window), fan_out)
        for part, extents, drawn in (("weight", (*outputs, *window), weight), ("bias", outputs, bias)):
            tensors.append(Tensor(f"{shape.name}.{part}", shape.index, extents, offset, *drawn))
            offset = _aligned(offset + prod(extents))
    return tuple(tensors)


Drawn: TypeAlias = tuple[Distribution, float]


def _initial(init: Initializer, fan_in: int, fan_out: int) -> tuple[Drawn, Drawn]:
    """Returns the distributions of weights and biases.

    He et al. 2015, eq. 10: N(0, 2 / fan_in). Glorot and Bengio 2010, eq. 16: U(+-sqrt(6 / (fan_in + fan_out))).
    LeCun et al. 1998, eq. 16: N(0, 1 / fan_in). PyTorch: U(+-sqrt(1 / fan_in)), also for biases.
    """
    none: Drawn = ("zeros", 0.0)
    if isinstance(init, (int, float)):
        return ("constant", float(init)), none
    if init == "pytorch":
        drawn: Drawn = ("uniform", sqrt(1.0 / fan_in))
        return drawn, drawn
    weights: dict[str, Drawn] = {
        "he": ("normal", sqrt(2.0 / fan_in)),
        "glorot": ("uniform", sqrt(6.0 / (fan_in + fan_out))),
        "lecun": ("normal", sqrt(1.0 / fan_in)),
        "zeros": none,
    }
    return weights[init], none


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def bucket_ranges(buckets: Iterable[int]) -> str:
    """Returns `bucket 3`, or `buckets 3, 7-9`."""
    found: list[list[int]] = []
    for bucket in sorted(buckets):
        if found and bucket == found[-1][-1] + 1:
            found[-1].append(bucket)
        else:
            found.append([bucket])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)
    return f"{'bucket' if text.isdecimal() else 'buckets'} {text}"
