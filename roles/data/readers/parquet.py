"""Parquet files: the description of the reader, which needs no pyarrow; `parquet_file` reads them."""

from __future__ import annotations

from typing import Final

from adamctl.roles.data.readers.plugins import Reader

READER: Final = Reader(
    "parquet",
    (".parquet",),
    open="adamctl.roles.data.readers.parquet_file:open_parquet",
    extra="parquet",
    reads_config=True,
    reads_urls=True,
    reads_budget=True,
    files="adamctl.roles.data.readers.parquet_file:parquet_files",
)
