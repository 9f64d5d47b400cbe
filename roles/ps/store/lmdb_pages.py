"""Finds the values in an LMDB file by reading it instead of mapping it (format of LMDB 0.9).

LMDB trusts its files: a truncated file kills the reader with SIGBUS, and a damaged tree may make it crash, loop for
ever, or reuse pages that are in use. Here every page of both trees (of the values, and of the free pages) is read with
`pread` and checked against the rules that LMDB follows when it writes; a file that passes is safe for LMDB. Only the
bytes of large values are left to the caller, who reads them once, together with the header in front of them.

All integers are in the byte order of the machine that wrote the file, which must be little-endian.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

PAGE_HEADER: Final = Struct("<QHHHH")  # number, 0, flags, then of trees: end of pointers, start of nodes
OVERFLOW_HEADER: Final = Struct("<QHHI")  # number, 0, flags, pages
NODE: Final = Struct("<HHHH")  # size of the data (low, high; of a branch the low 32 bits of a page), flags, key's size
META: Final = Struct("<IIQQ48s48sQQ")  # magic, version, address, map, trees of free pages and values, last page, number
TREE: Final = Struct("<IHHQQQQQ")  # of free pages the page size, flags, depth, pages of three kinds, entries, root
HEADER_BYTES: Final = PAGE_HEADER.size
NUMBER_BYTES: Final = 8
MAGIC: Final = 0xBEEFC0DE
VERSION: Final = 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
LARGE_NODE = 1
INTEGER_KEYS = 8
NO_PAGE = (1 << 64) - 1
METAS = 2
PAGE_BYTES_ALLOWED: Final = tuple(1 << power for power in range(9, 17))
DEPTH_MAX = 32


class DamagedPagesError(ValueError):
    """A page is not one that LMDB would write, or is in the wrong place."""


class Value(NamedTuple):
    """One entry: its bytes start at `offset` in the file.

    A large value has `pages` of its own, with a header right before the value; others have 0.
    """

    key: bytes
    offset: int
    size: int
    pages: int


@dataclass(frozen=True)
class _Tree:
    """A root's description of a tree. `pages`: numbers of its branch pages, leaf pages, and pages of large values."""

    pad: int
    flags: int
    depth: int
    pages: tuple[int, int, int]
    entries: int
    root: int


@dataclass(frozen=True)
class _Root:
    """One of a file's two roots."""

    page_bytes: int
    last_page: int
    number: int
    free: _Tree
    values: _Tree


def values_of(descriptor: int) -> list[Value]:
    """Returns the entries of an LMDB file with one unnamed database, in the order of their keys.

    Each large value must have been written only once: an overwritten one may have more pages than it needs.

    Raises:
        DamagedPagesError: the file does not follow LMDB's rules.
        OSError: it cannot be read.
    """
    return _Walk(descriptor, _newest_root(descriptor)).run()


def check_large(value: Value, header: bytes | memoryview, page_bytes: int) -> None:
    """Checks the header in front of a large value. Raises DamagedPagesError."""
    number = (value.offset - HEADER_BYTES) // page_bytes
    found, _, flags, pages = OVERFLOW_HEADER.unpack_from(header)
    if (found, flags, pages) != (number, OVERFLOW, value.pages):
        raise DamagedPagesError(f"page {number} is not the first of the {value.pages} pages of a large value")


def page_bytes_of(descriptor: int) -> int:
    """Returns the size of a file's pages. Raises DamagedPagesError."""
    return _newest_root(descriptor).page_bytes


def _newest_root(descriptor: int) -> _Root:
    first = _root(descriptor, 0, 0)
    second = _root(descriptor, 1, first.page_bytes)
    if first.page_bytes != second.page_bytes:
        raise DamagedPagesError("its two roots name different page sizes")
    return second if second.number > first.number else first


def _root(descriptor: int, index: int, offset: int) -> _Root:
    data = os.pread(descriptor, HEADER_BYTES + META.size, offset)
    if len(data) < HEADER_BYTES + META.size:
        raise DamagedPagesError("the file ends inside its roots")
    number, _, flags, _, _ = PAGE_HEADER.unpack_from(data)
    magic, version, _, _, free, values, last_page, transaction = META.unpack_from(data, HEADER_BYTES)
    free_tree, values_tree = _tree(free), _tree(values)
    page_bytes = free_tree.pad
    if number != index or flags != META_PAGE or magic != MAGIC or version != VERSION:
        raise DamagedPagesError(f"root {index} is not an LMDB root")
    if page_bytes not in PAGE_BYTES_ALLOWED:
        raise DamagedPagesError(f"root {index} names pages of {page_bytes} bytes")
    if free_tree.flags & 0xFF != INTEGER_KEYS or (values_tree.flags, values_tree.pad) != (0, 0):
        raise DamagedPagesError(f"root {index} names trees of another kind")
    return _Root(page_bytes, last_page, transaction, free_tree, values_tree)


def _tree(data: bytes) -> _Tree:
    pad, flags, depth, branches, leaves, large, entries, root = TREE.unpack(data)
    return _Tree(pad, flags, depth, (branches, leaves, large), entries, root)


class _Walk:
    """Reads both trees; every page may be used only once."""

    def __init__(self, descriptor: int, root: _Root) -> None:
        self._descriptor, self._root = descriptor, root
        self._page_bytes = root.page_bytes
        self._file_bytes = os.fstat(descriptor).st_size
        # Pages beyond the file's end are free, and the file lists each of them, in eight bytes.
        pages_max = -(-self._file_bytes // root.page_bytes) + self._file_bytes // 8
        if not METAS <= root.last_page + 1 <= pages_max:
            raise DamagedPagesError(f"the root says that the last page is {root.last_page}, which cannot be right")
        self._used: NDArray[np.uint8] = np.zeros(root.last_page + 1, np.uint8)
        self._used[:METAS] = 1

    def run(self) -> list[Value]:
        values = list(self._entries(self._root.values, branches_min=2, integers=False))
        for value in self._entries(self._root.free, branches_min=1, integers=True):
            self._take_free(value)
        file_pages = -(-self._file_bytes // self._page_bytes)
        if not self._used[file_pages:].all():  # LMDB omits free pages at the file's end, but no others
            raise DamagedPagesError(f"the file ends after page {file_pages - 1}, not after {self._root.last_page}")
        return values

    def _take(self, first: int, count: int = 1) -> None:
        if not METAS <= first <= first + count <= self._root.last_page + 1:
            raise DamagedPagesError(f"pages {first} to {first + count - 1} are outside the file")
        if self._used[first : first + count].any():
            raise DamagedPagesError(f"some of pages {first} to {first + count - 1} are used twice")
        self._used[first : first + count] = 1

    def _take_free(self, value: Value) -> None:
        start = value.offset - (HEADER_BYTES if value.pages else 0)
        data = os.pread(self._descriptor, value.offset + value.size - start, start)
        if value.pages:
            check_large(value, data.ljust(HEADER_BYTES, b"\0"), self._page_bytes)
        numbers = np.frombuffer(data[value.offset - start :][: value.size // 8 * 8], "<u8")
        if not numbers.size or value.size % 8 or int(numbers[0]) >= numbers.size:
            raise DamagedPagesError("a list of free pages has the wrong length")
        pages = numbers[1 : 1 + int(numbers[0])]
        if not pages.size:
            return
        if (pages[1:] >= pages[:-1]).any() or int(pages[0]) > self._root.last_page or int(pages[-1]) < METAS:
            raise DamagedPagesError("a list of free pages is not in order")
        index = pages.astype(np.int64)
        if self._used[index].any():
            raise DamagedPagesError("a page in use is in a list of free pages")
        self._used[index] = 1

    # --- trees ------------------------------------------------------------------------------------------------------

    def _entries(self, tree: _Tree, *, branches_min: int, integers: bool) -> Iterator[Value]:
        if tree.root == NO_PAGE:
            if tree.depth or tree.entries or any(tree.pages):
                raise DamagedPagesError("an empty tree claims to have entries")
            return
        if not 0 < tree.depth < DEPTH_MAX:
            raise DamagedPagesError(f"a tree claims to be {tree.depth} pages deep")
        entries, before = 0, None
        self._pages = [0, 0, 0]
        for value in self._below(tree.root, tree.depth, branches_min, integers, None, None):
            order = _order(value.key, integers)
            if before is not None and order <= before:
                raise DamagedPagesError("keys are not in order")
            before = order
            entries += 1
            yield value
        if (entries, *self._pages) != (tree.entries, *tree.pages):
            raise DamagedPagesError(f"a tree does not have {tree.entries} entries in {sum(tree.pages)} pages as stated")

    def _below(
        self, number: int, depth: int, branches_min: int, integers: bool, low: bytes | None, high: bytes | None
    ) -> Iterator[Value]:
        """Yields the entries under a page whose keys should be in [low, high)."""
        self._take(number)
        page = os.pread(self._descriptor, self._page_bytes, number * self._page_bytes)
        if len(page) < self._page_bytes:
            raise DamagedPagesError(f"the file ends before or inside page {number}")
        self._pages[depth == 1] += 1
        nodes = self._nodes(number, page, LEAF if depth == 1 else BRANCH)
        keys = [page[start + NODE.size : start + NODE.size + key_bytes] for start, _, _, key_bytes in nodes]
        if depth > 1:
            if len(nodes) < branches_min:
                raise DamagedPagesError(f"page {number} has {len(nodes)} branches")
            for position, (_, flags, size, _) in enumerate(nodes):
                child = size | flags << 32
                child_low = keys[position] if position else low
                child_high = keys[position + 1] if position + 1 < len(nodes) else high
                yield from self._below(child, depth - 1, branches_min, integers, child_low, child_high)
            return
        for key, (start, flags, size, key_bytes) in zip(keys, nodes, strict=True):
            order = _order(key, integers)
            if (low is not None and order < _order(low, integers)) or (
                high is not None and order >= _order(high, integers)
            ):
                raise DamagedPagesError(f"a key in page {number} does not belong there")
            yield self._value(page, number, key, start + NODE.size + key_bytes, flags, size)

    def _value(self, page: bytes, number: int, key: bytes, start: int, flags: int, size: int) -> Value:
        if flags != LARGE_NODE:
            return Value(key, number * self._page_bytes + start, size, 0)
        first = int.from_bytes(page[start : start + NUMBER_BYTES], "little")
        pages = (HEADER_BYTES - 1 + size) // self._page_bytes + 1
        self._take(first, pages)
        self._pages[2] += pages
        offset = first * self._page_bytes + HEADER_BYTES
        if offset + size > self._file_bytes:
            raise DamagedPagesError(f"the file ends inside the large value of page {first}")
        return Value(key, offset, size, pages)

    def _nodes(self, number: int, page: bytes, kind: int) -> list[tuple[int, int, int, int]]:
        """Returns (start, flags, size, key's size) of a page's nodes, in the order of their keys."""
        found, _, flags, lower, upper = PAGE_HEADER.unpack_from(page)
        if (found, flags) != (number, kind):
            raise DamagedPagesError(f"page {number} is of the wrong kind")
        if not HEADER_BYTES < lower <= upper <= self._page_bytes or lower % 2:
            raise DamagedPagesError(f"page {number} has invalid bounds")
        nodes = []
        spans = []
        for pointer in range(HEADER_BYTES, lower, 2):
            start = int.from_bytes(page[pointer : pointer + 2], "little")
            if not upper <= start <= self._page_bytes - NODE.size:
                raise DamagedPagesError(f"a node of page {number} is outside the page")
            low, high, node_flags, key_bytes = NODE.unpack_from(page, start)
            size = low | high << 16
            inside = 0 if kind == BRANCH else NUMBER_BYTES if node_flags == LARGE_NODE else size
            if kind == LEAF and node_flags not in (0, LARGE_NODE):
                raise DamagedPagesError(f"a node of page {number} is of an unknown kind")
            spans.append((start, start + NODE.size + key_bytes + inside))
            nodes.append((start, node_flags, size, key_bytes))
        spans.sort()
        stops = [start for start, _ in spans[1:]] + [self._page_bytes]
        if any(stop > limit for (_, stop), limit in zip(spans, stops, strict=True)):
            raise DamagedPagesError(f"nodes of page {number} overlap")
        return nodes


def _order(key: bytes, integers: bool) -> bytes:
    """Returns the sort key of a key."""
    if integers and len(key) != NUMBER_BYTES:
        raise DamagedPagesError(f"a key of {len(key)} bytes should be a number")
    return key[::-1] if integers else key
