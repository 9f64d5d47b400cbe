"""The parameter layout of a job: its tensors, cut into shards and buckets.

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
    """Shards [shard_start, shard_stop), adjacent, in one layer and of one partition."""

    index: int
    shard_start: int
    shard_stop: int
    size_bytes: int


class Owners(msgspec.Struct, frozen=True, array_like=True):
    """Which partition of a replica pushes which rows of each tensor: shards and buckets cross none of its boundaries.

    `ranges` has, per tensor, (first row, row after the last, partition), in order and together all rows.
    """

    partitions: int
    ranges: tuple[tuple[tuple[int, int, int], ...], ...]


@dataclass(frozen=True)
class ParameterLayout:
    """The ordered tensors of a job, cut into shards and buckets; equal hashes mean equal layouts.

    `owners` is None where a replica is one process.
    """

    tensors: tuple[Tensor, ...]
    shards: tuple[Shard, ...]
    buckets: tuple[Bucket, ...]
    owners: Owners | None = None

    @cached_property
    def hash(self) -> str:
        """Hex digest over names, shapes, dtypes, offsets and cuts; checked whenever a client attaches to a job."""
        parts = [[(t.name, t.layer, t.shape, t.offset, t.dtype) for t in self.tensors], self.shards, self.buckets]
        material = msgspec.msgpack.encode(parts if self.owners is None else [*parts, self.owners])
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

    @cached_property
    def partition_of_bucket(self) -> tuple[int, ...]:
        """Per bucket, the partition that pushes it: all 0 where a replica is one process."""
        if self.owners is None:
            return (0,) * len(self.buckets)
        owner = {(tensor, row): p for tensor, rows in enumerate(self.owners.ranges) for row, _, p in rows}
        found: list[int] = []
        for shard in self.shards:  # a range begins with a shard, so the last one that began is its own
            found.append(owner.get((shard.tensor, shard.row_start), found[-1] if found else 0))
        return tuple(found[bucket.shard_start] for bucket in self.buckets)

    def shards_of(self, bucket: Bucket) -> tuple[Shard, ...]:
        return self.shards[bucket.shard_start : bucket.shard_stop]

    def layer_of(self, bucket: Bucket) -> int:
        return self.tensors[self.shards[bucket.shard_start].tensor].layer


def build_layout(model: Model, servers_expected: int, owners: Owners | None = None) -> ParameterLayout:
    """Returns the layout of a model for a job that expects this many parameter servers.

    `owners` are those of the plan of a replica's partitions.

    Raises:
        ConfigurationError: the layers do not fit together, or the model has no parameters.
    """
    tensors = tensors_of(model)
    if not tensors:
        raise ConfigurationError("model.layers: expected at least one layer with parameters; found none")
    return cut_layout(tensors, servers_expected, owners)


def cut_layout(tensors: tuple[Tensor, ...], servers_expected: int, owners: Owners | None = None) -> ParameterLayout:
    """Cuts tensors into shards of at most 1 MiB, in at least ten buckets per server where rows allow.

    Raises:
        ConfigurationError: no server, no tensor, tensors that overlap or are empty, owners that do not cover them, or a
            limit is exceeded. Nothing has been allocated then.
    """
    if servers_expected < 0:
        raise ConfigurationError(f"cluster.ps: expected at least 0 servers; found {servers_expected}")
    if servers_expected > SERVERS_MAX:
        raise ConfigurationError(f"cluster.ps: expected at most {SERVERS_MAX} servers; found {servers_expected}")
    _check_tensors(tensors)
    owned = [((0, tensor.shape[0], 0),) for tensor in tensors] if owners is None else owners.ranges
    if owners is not None:
        _check_owners(tensors, owners)
    total_bytes = sum(tensor.size for tensor in tensors) * ELEMENT_BYTES
    bucket_bytes_max = max(total_bytes // (BUCKETS_PER_SERVER * max(servers_expected, 1)), 1)
    shard_size_max = min(SHARD_BYTES_MAX, bucket_bytes_max) // ELEMENT_BYTES
    rows_max = [max(shard_size_max // tensor.row_size, 1) for tensor in tensors]
    count = sum(-(-(b - a) // most) for ranges, most in zip(owned, rows_max, strict=True) for a, b, _ in ranges)
    if count > SHARDS_MAX:
        raise ConfigurationError(
            f"expected parameters in at most {SHARDS_MAX} shards; found {count} of {total_bytes} bytes"
        )
    shards: list[Shard] = []
    partitions: list[int] = []
    for number, tensor in enumerate(tensors):
        for first, last, partition in owned[number]:
            for start in range(first, last, rows_max[number]):
                stop = min(start + rows_max[number], last)
                offset = tensor.offset + start * tensor.row_size
                shards.append(Shard(len(shards), number, start, stop, offset, (stop - start) * tensor.row_size))
                partitions.append(partition)
    return ParameterLayout(tensors, tuple(shards), _buckets(tensors, shards, partitions, bucket_bytes_max), owners)


def _check_owners(tensors: tuple[Tensor, ...], owners: Owners) -> None:
    if len(owners.ranges) != len(tensors):
        raise ConfigurationError(f"expected owners of {len(tensors)} tensors; found those of {len(owners.ranges)}")
    for tensor, ranges in zip(tensors, owners.ranges, strict=True):
        row = 0
        for start, stop, partition in ranges:
            if start != row or stop <= start or not 0 <= partition < owners.partitions:
                row = -1
                break
            row = stop
        if row != tensor.shape[0]:
            raise ConfigurationError(
                f"tensor {tensor.name[:80]!a}: expected owners of its {tensor.shape[0]} rows in order, from 0 to "
                f"{owners.partitions - 1}; found {str(ranges)[:80]}"
            )


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


def _buckets(
    tensors: tuple[Tensor, ...], shards: list[Shard], partitions: list[int], bucket_bytes_max: int
) -> tuple[Bucket, ...]:
    buckets: list[Bucket] = []
    start, filled_bytes = 0, 0
    for shard in shards:
        size_bytes = shard.size * ELEMENT_BYTES
        new_layer = tensors[shard.tensor].layer != tensors[shards[start].tensor].layer
        new_owner = partitions[shard.index] != partitions[start]
        if shard.index > start and (new_layer or new_owner or filled_bytes + size_bytes > bucket_bytes_max):
            buckets.append(Bucket(len(buckets), start, shard.index, filled_bytes))
            start, filled_bytes = shard.index, 0
        filled_bytes += size_bytes
    buckets.append(Bucket(len(buckets), start, len(shards), filled_bytes))
    return tuple(buckets)


def tensors_of(model: Model) -> tuple[Tensor, ...]:
    """Returns the parameters of a model in order: weight, then bias, of each layer that has them.

    Those of a layer of the user's own are in the order of their names.

    Raises:
        ConfigurationError: the layers do not fit together.
    """
    tensors: list[Tensor] = []
    offset = 0
    for shape in infer(model):
        layer, own = shape.layer, shape.own
        if own is not None:
            for name, one in own.parameters:
                drawn = _drawn(one.init, prod(one.shape[1:]), one.shape[0])
                tensors.append(Tensor(f"{shape.name}.{name}", shape.index, one.shape, offset, *drawn))
                offset = _aligned(offset + prod(one.shape))
            continue
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


def _drawn(init: Initializer | Literal["ones"], fan_in: int, fan_out: int) -> Drawn:
    """Returns the distribution of one tensor of a layer of the user's own."""
    return _initial(1.0 if init == "ones" else init, fan_in, fan_out)[0]


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
