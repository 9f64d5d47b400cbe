"""Typed headers of the data server."""

from __future__ import annotations

from adamctl.wire.messages.common import Message


class DataOpenRequest(Message, frozen=True):
    """Body: MessagePack of `adamctl.config.data.DataConfig`. Opening twice gives the same answer.

    `scales`: the reader scales what it gets; without it the request is refused. `again`: it is only asked about, by
    whoever has opened it: the server does not look whether its files have changed.
    """

    input_shape: tuple[int, ...]
    seed: int
    scales: bool = False
    again: bool = False


class DataOpenReply(Message, frozen=True):
    """`dataset` names it in reads; `examples` maps train, validation and test to their counts.

    Examples are sent as the files have them, of type `dtype`: uint8 or float32. A model is trained on
    value * factor + shift, computed in float32 by the reader. `targets`: how many float32 numbers each example has in
    place of a label; 0 if it has a label. `by_block`: examples are decoded when they are asked for, so that several
    servers share them out by block. `class_examples`: how many training examples each of `classes` has.
    `read_bytes`: of its files, read since the server opened it; for whoever asks again. `files`: which process has
    opened it, and in which state of its files, to be said in reads; empty: the server does not tell.
    """

    dataset: str
    examples: dict[str, int]
    classes: tuple[str, ...]
    dtype: str = "float32"
    factor: float = 1.0
    shift: float = 0.0
    class_examples: tuple[int, ...] = ()
    targets: int = 0
    by_block: bool = False
    read_bytes: int = 0
    files: bytes = b""


class DataReadRequest(Message, frozen=True):
    """Examples [start, stop) of a split in the order of a pass; pass -1 is the order of the files.

    With `servers`, the names of the data servers that the reader believes alive, sorted: only what `servers[receiver]`,
    the one that is asked, owns of them. Body then: nothing, or int32 positions in the range of which alone it is asked.
    `files`: what the server said when the reader opened the set; a server that has others open now refuses.
    """

    dataset: str
    split: str
    pass_number: int
    start: int
    stop: int
    servers: tuple[str, ...] = ()
    receiver: int = 0
    files: bytes = b""


class DataReadReply(Message, frozen=True):
    """Body: the data set's dtype [examples, *input shape], then, at `labels_offset`, labels or targets.

    If what one of several servers owns was asked for: at `positions_offset`, int32, their positions in the range.
    """

    examples: int
    labels_offset: int
    positions_offset: int = 0
