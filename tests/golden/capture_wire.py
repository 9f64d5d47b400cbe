"""Captures one frame of every message, twice, with what it must mean: for a new version, never for an old one again.

    python tests/golden/capture_wire.py tests/golden/wire/NAME.jsonl

writes what the code of this tree sends, under a new name such as 0.2.0. Code of another commit is captured in a
worktree of it: `PYTHONPATH=WORKTREE python tests/golden/capture_wire.py ...`. A file that exists is not written again.

Each line is an object: `opcode`, `kind` (request, reply or error), `frame` in hexadecimal, and `fields`, by name. The
first of two frames has the least values, the second another value in each field. This program imports adamctl alone,
so that it runs with the code of earlier commits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

import adamctl
from adamctl.wire import codec
from adamctl.wire.constants import VERSION_HIGHEST, VERSION_LOWEST
from adamctl.wire.messages import MESSAGES, ErrorReply

REQUEST_ID = 7


class Values:
    """Values of any type: the least, or each unlike the one before."""

    def __init__(self, *, least: bool) -> None:
        self._least = least
        self._count = 0

    def of(self, kind: inspect.Type) -> Any:
        self._count += 1
        number = 0 if self._least else self._count
        match kind:
            case inspect.BoolType():
                return not self._least
            case inspect.IntType():
                return number
            case inspect.FloatType():
                return number + (0.0 if self._least else 0.5)
            case inspect.StrType():
                return "" if self._least else f"text-{number}"
            case inspect.BytesType():
                return b"" if self._least else bytes([number, 255])
            case inspect.NoneType():
                return None
            case inspect.UnionType():
                others = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
                return None if self._least and len(others) < len(kind.types) else self.of(others[0])
            case inspect.VarTupleType() | inspect.ListType():
                found = [] if self._least else [self.of(kind.item_type), self.of(kind.item_type)]
                return tuple(found) if isinstance(kind, inspect.VarTupleType) else found
            case inspect.TupleType():
                return tuple(self.of(item) for item in kind.item_types)
            case inspect.DictType():
                return {} if self._least else {self.of(kind.key_type): self.of(kind.value_type)}
            case inspect.StructType():
                return kind.cls(**{field.name: self.of(field.type) for field in kind.fields})
            case inspect.LiteralType():
                return kind.values[0 if self._least else -1]
            case inspect.AnyType():
                return None if self._least else f"anything-{number}"
        raise AssertionError(f"no value is known for {kind}")


def plain(value: Any) -> Any:
    """Returns a value as JSON: structs by the names of their fields, bytes in hexadecimal, maps as pairs."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes):
        return f"hex:{value.hex()}"
    if isinstance(value, dict):
        return [[plain(key), plain(of_key)] for key, of_key in value.items()]
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def lines() -> list[dict[str, Any]]:
    """Returns two frames of every message."""
    found = []
    for opcode, (request, reply) in MESSAGES.items():
        for least in (True, False):
            for kind, cls in (("request", request), ("reply", reply)):
                message = Values(least=least).of(inspect.type_info(cls))
                frame = (
                    codec.encode_request(message, REQUEST_ID, deadline_s=1.0)
                    if kind == "request"
                    else codec.encode_reply(opcode, REQUEST_ID, message)
                )
                line = {"opcode": opcode.name, "kind": kind, "frame": bytes(frame).hex(), "fields": plain(message)}
                found.append(line)
    error = ErrorReply(3, "why", {"expected": 1, "found": "two"})
    frame = codec.encode_error(next(iter(MESSAGES)), REQUEST_ID, error.code, error.message, error.details)
    found.append({"opcode": "HELLO", "kind": "error", "frame": bytes(frame).hex(), "fields": plain(error)})
    return found


def main(out: Path) -> None:
    """Writes the capture. Raises SystemExit: the file exists."""
    if out.exists():
        raise SystemExit(f"{out} exists: a capture is what a version really sent, so it is never written again")
    root = Path(adamctl.__file__).resolve().parent.parent
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    ).stdout.strip()
    made_by = {"version": adamctl.__version__, "commit": commit, "wire_versions": [VERSION_LOWEST, VERSION_HIGHEST]}
    out.write_text("".join(json.dumps(line) + "\n" for line in (made_by, *lines())))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
