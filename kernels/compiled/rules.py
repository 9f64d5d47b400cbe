"""Update rules, each in one pass over memory, also for several gradients at once.

The elements of a shard are independent, so a pass holds a few of them in vector registers, updates them with up to
eight gradients one after another, and stores them once: eight queued updates of `add` read eight gradients and the
weights, and write the weights. With loops over Python arrays, the compiler would have to prove that none of the many
arrays overlap, and gives up; here each rule defines its work on one vector, and the loops around it are LLVM
instructions. Every multiply-add is explicit, so that one update at a time and eight give the same bits, in place or
not, in the middle and at the end of an array.

Arrays come as addresses (float32, contiguous, of equal length, checked by `adamctl.kernels.rules.rule`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numba
import numba.core.cgutils
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba import types

from adamctl.kernels.compiled.jit import IN1, f32, i64, inline, kernel, readable, writable
from adamctl.kernels.compiled.vectors import intrinsic

cgutils: Any = numba.core.cgutils
carray: Any = numba.carray  # type: ignore[attr-defined, unused-ignore]
_pointers: Any = types.CPointer

BLOCK = 4096  # elements of each array, which stay in cache while more than eight updates are applied to them
PIECE = 4 * BLOCK  # elements that are checked while they are in cache
TOGETHER = (8, 4, 2, 1)  # gradients in one pass
LANES = 16
AHEAD_BYTES = 2048  # gradients are prefetched this early: the hardware prefetcher stops at page boundaries
LARGEST = np.finfo(np.float32).max

Value: TypeAlias = Any
WORD = ir.IntType(64)


def word(value: int) -> Value:
    return ir.Constant(WORD, value)


def fetch(builder: Any, address: Value, write: bool = False) -> None:
    """Brings the cache line at an address, which need not be in an array, to the second-level cache."""
    byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    second_level_cache, data = number(1), number(1)
    builder.call(function, [builder.inttoptr(address, byte), number(int(write)), second_level_cache, data])


class Vector:
    """Arithmetic on `lanes` float32 numbers at once."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.type = ir.VectorType(ir.FloatType(), lanes)

    def _call(self, name: str, *arguments: Value) -> Value:
        kind = ir.FunctionType(self.type, [self.type] * len(arguments))
        function = cgutils.get_or_insert_function(self.builder.module, kind, f"{name}.v{self.type.count}f32")
        return self.builder.call(function, arguments)

    def load(self, address: Value) -> Value:
        return self.builder.load(self.builder.inttoptr(address, self.type.as_pointer()), align=4)

    def store(self, value: Value, address: Value) -> None:
        self.builder.store(value, self.builder.inttoptr(address, self.type.as_pointer()), align=4)

    def everywhere(self, scalar: Value) -> Value:
        """Returns a vector with the scalar in every lane."""
        undefined = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), self.type.count), None)
        return self.builder.shuffle_vector(first, undefined, lanes)

    def add(self, a: Value, b: Value) -> Value:
        return self.builder.fadd(a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        return self.builder.fmul(a, b)

    def divide(self, a: Value, b: Value) -> Value:
        return self.builder.fdiv(a, b)

    def multiply_add(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the machine can."""
        return self._call("llvm.fmuladd", a, b, c)

    def multiply_subtract(self, a: Value, b: Value, c: Value) -> Value:
        """c - a * b."""
        return self.multiply_add(self.builder.fneg(a), b, c)

    def root(self, a: Value) -> Value:
        return self._call("llvm.sqrt", a)

    def at_least(self, a: Value, least: Value) -> Value:
        """max(a, least); NaN stays."""
        return self.builder.select(self.builder.fcmp_ordered("<", a, least), least, a)


Step: TypeAlias = Callable[[Vector, Value, list[Value], Value, list[Value], list[Value]], tuple[Value, list[Value]]]
"""(vector, weights, state, gradient, of this update, of all updates) -> (weights, state); each a register."""


def _add(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    return v.add(w, g), state


def _sgd(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    rate, keep = own
    return v.multiply_subtract(rate, g, v.multiply(w, keep)), state


def _momentum(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    (rate, keep), (mass,) = own, shared
    speed = v.multiply_add(mass, state[0], g)
    return v.multiply_subtract(rate, speed, v.multiply(w, keep)), [speed]


def _nesterov(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    (rate, keep), (mass,) = own, shared
    speed = v.multiply_add(mass, state[0], g)
    return v.multiply_subtract(rate, v.multiply_add(mass, speed, g), v.multiply(w, keep)), [speed]


def _adagrad(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    (rate, keep), (floor,) = own, shared
    squares = v.multiply_add(g, g, state[0])
    change = v.divide(v.multiply(rate, g), v.root(v.at_least(squares, floor)))
    return v.builder.fsub(v.multiply(w, keep), change), [squares]


def _rmsprop(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    (rate, keep), (decay, rest, epsilon) = own, shared
    squares = v.multiply_add(v.multiply(rest, g), g, v.multiply(decay, state[0]))
    change = v.divide(v.multiply(rate, g), v.add(v.root(squares), epsilon))
    return v.builder.fsub(v.multiply(w, keep), change), [squares]


def _adam(v: Vector, w: Value, state: list[Value], g: Value, own: list[Value], shared: list[Value]) -> Any:
    (rate, keep, root_rate), (beta1, rest1, beta2, rest2, epsilon) = own, shared
    mean = v.multiply_add(rest1, g, v.multiply(beta1, state[0]))
    squares = v.multiply_add(v.multiply(rest2, g), g, v.multiply(beta2, state[1]))
    change = v.divide(v.multiply(rate, mean), v.multiply_add(root_rate, v.root(squares), epsilon))
    return v.builder.fsub(v.multiply(w, keep), change), [mean, squares]


RULES: dict[str, tuple[Step, int, int, int]] = {
    "add": (_add, 0, 0, 0),
    "sgd": (_sgd, 0, 2, 0),
    "momentum": (_momentum, 1, 2, 1),
    "nesterov": (_nesterov, 1, 2, 1),
    "adagrad": (_adagrad, 1, 2, 1),
    "rmsprop": (_rmsprop, 1, 2, 3),
    "adam": (_adam, 2, 3, 5),
}
"""name -> (step, state arrays, numbers of each update, numbers shared by all)."""


@intrinsic
def _run(
    typing: Any, rule: Any, before: Any, after: Any, state: Any, gradients: Any, own: Any, shared: Any, size: Any
) -> Any:
    """The loops around a rule's step: blocks, gradients up to eight at a time, elements."""
    if not isinstance(rule, types.StringLiteral):
        return None
    signature = types.void(rule, i64, i64, state, gradients, own, shared, i64)
    name = rule.literal_value

    def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, before_, after_, state_, gradients_, own_, shared_, size_ = arguments
        kinds = signature.args
        data = [
            cgutils.create_struct_proxy(kind)(context, builder, array).data
            for kind, array in zip(kinds[3:7], (state_, gradients_, own_, shared_), strict=True)
        ]
        count = cgutils.create_struct_proxy(kinds[4])(context, builder, gradients_).nitems
        first, source = (cgutils.alloca_once(builder, WORD) for _ in range(2))
        blocks = builder.udiv(builder.add(size_, word(BLOCK - 1)), word(BLOCK))
        with cgutils.for_range(builder, blocks, intp=WORD) as block:
            start = builder.mul(block.index, word(BLOCK))
            length = builder.sub(size_, start)
            length = builder.select(builder.icmp_signed("<", length, word(BLOCK)), length, word(BLOCK))
            builder.store(word(0), first)
            builder.store(before_, source)
            for together in TOGETHER:
                groups = builder.udiv(builder.sub(count, builder.load(first)), word(together))
                with cgutils.for_range(builder, groups, intp=WORD):
                    addresses = (builder.load(source), after_)
                    _pass(builder, RULES[name], together, addresses, data, builder.load(first), start, length)
                    builder.store(builder.add(builder.load(first), word(together)), first)
                    builder.store(after_, source)
        return context.get_dummy_value()

    return signature, expand


def _pass(
    builder: Any, rule: tuple[Step, int, int, int], together: int, addresses: tuple[Value, Value], data: list[Value],
    first: Value, start: Value, length: Value,
) -> None:  # fmt: skip
    """Applies gradients[first : first + together] to a block's elements, reading and writing each element once."""
    step, states, owns, shareds = rule
    before, after = addresses
    states_at = items(builder, data[0], states)
    gradients_at = items(builder, data[1], together, first)
    own = items(builder, data[2], together * owns, builder.mul(first, word(owns)))
    shared = items(builder, data[3], shareds)

    def sweep(lanes: int, start: Value, steps: Value) -> None:
        v = Vector(builder, lanes)
        ours = [[v.everywhere(one) for one in own[n * owns : (n + 1) * owns]] for n in range(together)]
        theirs = [v.everywhere(one) for one in shared]
        with cgutils.for_range(builder, steps, intp=WORD) as loop:
            index = builder.add(start, builder.mul(loop.index, word(lanes)))
            offset = builder.mul(index, word(4))
            weights = v.load(builder.add(before, offset))
            held = [v.load(builder.add(at, offset)) for at in states_at]
            for n in range(together):
                place = builder.add(gradients_at[n], offset)
                if lanes > 1:
                    fetch(builder, builder.add(place, word(AHEAD_BYTES)))
                gradient = v.load(place)
                weights, held = step(v, weights, held, gradient, ours[n], theirs)
            v.store(weights, builder.add(after, offset))
            for value, at in zip(held, states_at, strict=True):
                v.store(value, builder.add(at, offset))

    whole = builder.udiv(length, word(LANES))
    covered = builder.mul(whole, word(LANES))
    sweep(LANES, start, whole)
    sweep(1, builder.add(start, covered), builder.sub(length, covered))


def items(builder: Any, data: Value, count: int, first: Value | None = None) -> list[Value]:
    """Returns the numbers data[first : first + count]."""
    base = word(0) if first is None else first
    return [builder.load(builder.gep(data, [builder.add(base, word(i))])) for i in range(count)]


def pointer_to(kind: Any) -> Any:
    """Makes the function that turns an address into a pointer to numbers of this type."""

    @intrinsic
    def pointer(typing: Any, address: Any) -> Any:
        signature = _pointers(kind)(i64)

        def expand(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return signature, expand

    return pointer


_floats_at = pointer_to(f32)


@inline
def floats(address: int, size: int) -> Any:
    """The array at an address."""
    return carray(_floats_at(address), size)


@kernel((IN1,))
def address(values: Any) -> int:
    """The address of an array; numpy takes three times as long to tell it."""
    return int(values.ctypes.data)


@kernel((IN1,))
def all_finite(values: Any) -> bool:
    """Whether no element is NaN or infinite; stops after the first bad block."""
    for start in range(0, len(values), BLOCK):
        part = values[start : min(start + BLOCK, len(values))]
        bad = np.int32(0)
        for i in range(len(part)):
            bad += np.int32(0) if abs(part[i]) <= LARGEST else np.int32(1)
        if bad:
            return False
    return True


@inline
def _are_finite(addresses: Any, size: int) -> bool:
    finite = True
    for address in addresses:
        finite = finite and all_finite(floats(address, size))
    return finite


@inline
def copy(source: int, target: int, size: int) -> None:
    read, written = floats(source, size), floats(target, size)
    for i in range(size):
        written[i] = read[i]


@inline
def _advance(addresses: Any, size: int) -> None:
    for i in range(len(addresses)):
        addresses[i] += 4 * size


ADDRESSES = readable(i64, 1)
SHARD_WORDS = 4  # of a shard: addresses of its weights before and after, its elements, how many gradients it gets
ARGUMENTS = (ADDRESSES, writable(i64, 1), writable(i64, 1), IN1, IN1, i64, writable(types.boolean, 1))


def _make(name: str) -> Any:
    """Makes the kernel of a rule: applies gradients to shards, to each its own.

    `shards` holds SHARD_WORDS for each; `state`, `gradients` and `own` hold, shard after shard, the addresses of its
    state, of its gradients, and the gradients' numbers. Addresses are advanced as they are used.

    Without `spare`, nothing is checked. With it (the address of as many elements as the largest shard has), shards with
    a non-finite gradient stay unchanged, except for memory `after`, and are marked in `refused`: the gradients are
    checked first or, for several gradients and a rule without state, the result is checked piece by piece while it is
    in cache; then the old values are kept in `spare` until the result is known to be finite.
    """
    _, states, owns, _ = RULES[name]

    def apply(shards: Any, state: Any, gradients: Any, own: Any, shared: Any, spare: int, refused: Any) -> None:
        first = 0
        for n in range(len(refused)):
            before, after = shards[n * SHARD_WORDS], shards[n * SHARD_WORDS + 1]
            size, count = shards[n * SHARD_WORDS + 2], shards[n * SHARD_WORDS + 3]
            held, given = state[n * states : (n + 1) * states], gradients[first : first + count]
            numbers = own[first * owns : (first + count) * owns]
            first += count
            afterwards = spare != 0 and states == 0 and count > 1
            refused[n] = spare != 0 and not afterwards and not _are_finite(given, size)
            length = PIECE if afterwards else size
            start = 0
            while start < size and not refused[n]:
                length = min(length, size - start)
                here = 4 * start
                if afterwards and before == after:
                    copy(before + here, spare + here, length)
                _run(name, before + here, after + here, held, given, numbers, shared, length)
                start += length
                if afterwards and not all_finite(floats(after + here, length)):
                    refused[n] = True
                    if before == after:
                        copy(spare, before, start)
                _advance(given, length)
                _advance(held, length)

    apply.__name__ = apply.__qualname__ = name  # the cache identifies it by this name
    return kernel(ARGUMENTS, relaxed=False)(apply)


add = _make("add")
"""w += g."""
sgd = _make("sgd")
"""w = w * keep - rate * g; own = (rate, keep) of each gradient."""
momentum = _make("momentum")
"""v = mass * v + g, w = w * keep - rate * v; own = (rate, keep), shared = (mass,)."""
nesterov = _make("nesterov")
"""As momentum, but w = w * keep - rate * (g + mass * v)."""
adagrad = _make("adagrad")
"""a += g^2, w = w * keep - rate * g / sqrt(max(a, floor)); own = (rate, keep), shared = (floor,)."""
rmsprop = _make("rmsprop")
"""a = decay * a + rest * g^2, w = w * keep - rate * g / (sqrt(a) + epsilon); shared = (decay, rest, epsilon)."""
adam = _make("adam")
"""m = beta1 * m + rest1 * g, a = beta2 * a + rest2 * g^2.

w = w * keep - rate * m / (root_rate * sqrt(a) + epsilon);
own = (rate, keep, root_rate) with the bias corrections, shared = (beta1, rest1, beta2, rest2, epsilon).
"""
