"""Writes which keys an experiment has: for a new version, never for an old one again.

    python tests/golden/capture_keys.py tests/golden/keys/NAME.json

writes those of this tree, under a new name such as 0.2.0. Those of another commit are written in a worktree of it:
`PYTHONPATH=WORKTREE python tests/golden/capture_keys.py ...`. A file that exists is not written again.

The file is an object: table, with dots, -> its keys. This program imports adamctl alone, so that it runs with the code
of earlier commits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import inspect

from adamctl.config.experiment import Experiment
from adamctl.config.section import Section


def tables(kind: inspect.Type, name: str) -> Iterator[tuple[str, list[str]]]:
    """Yields each table of the experiment with its keys, but not layers, which have golden frames of their own."""
    if isinstance(kind, inspect.UnionType):
        for one in kind.types:
            yield from tables(one, name)
    if isinstance(kind, inspect.StructType) and issubclass(kind.cls, Section):
        yield name, sorted(field.encode_name for field in kind.fields)
        for field in kind.fields:
            yield from tables(field.type, f"{name}.{field.encode_name}".lstrip("."))


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(str(__doc__))
    found = dict(tables(inspect.type_info(Experiment), ""))
    with Path(sys.argv[1]).open("x", encoding="utf-8") as stream:
        stream.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
