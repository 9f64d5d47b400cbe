"""The 1,797 handwritten digits that are installed with scikit-learn: data that needs no download.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits" (UCI), its test part, 8 x 8, values 0..16.
"""

from __future__ import annotations

import gzip
import importlib.util
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from adamctl.errors import ConfigurationError, DamagedDataError
from adamctl.roles.data.readers.plugins import Reader
from adamctl.roles.data.readers.source import TableSource

EXAMPLES: Final = 1797
TEST_EXAMPLES: Final = 360
_SIDE: Final = 8
_VALUE_MAX: Final = 16.0

READER: Final = Reader("digits", (), open=f"{__name__}:open_installed", extra="examples")


def open_installed(path: Path | None, input_shape: Sequence[int] | None) -> TableSource:
    """Opens the digits where scikit-learn has them, whatever `path` is. Raises like `open_digits`."""
    return open_digits(input_shape)


def open_digits(input_shape: Sequence[int] | None = None) -> TableSource:
    """Opens the digits; the last 360 are the test set. `unit` maps 0..16 to 0..1.

    Raises:
        ConfigurationError: scikit-learn is not installed, or the model's input is neither [8, 8, 1] nor [64].
        DamagedDataError: its file is damaged.
    """
    path = _path()
    try:
        text = gzip.decompress(path.read_bytes()).decode("ascii")
        table = np.array(text.replace("\n", ",").rstrip(",").split(","), np.float32).reshape(
            EXAMPLES, _SIDE * _SIDE + 1
        )
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DamagedDataError(
            f"{path}: expected 1797 lines of 65 numbers, found: {error}; install scikit-learn again"
        ) from error
    images = table[:, :-1].astype(np.uint8).reshape(EXAMPLES, _SIDE, _SIDE)
    labels = table[:, -1].astype(np.int32)
    first_test = EXAMPLES - TEST_EXAMPLES
    return TableSource(
        "digits",
        {
            "train": (images[:first_test], labels[:first_test]),
            "test": (images[first_test:], labels[first_test:]),
        },
        value_max=_VALUE_MAX,
        stored_bytes=path.stat().st_size,
        input_shape=input_shape,
        origin="digits",
    )


def _path() -> Path:
    """Finds the file without importing scikit-learn, which takes more than a second."""
    found = importlib.util.find_spec("sklearn")
    if found is not None and found.origin is not None:
        path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return path
    raise ConfigurationError(
        "the digits data set comes with scikit-learn, which is not installed here: pip install 'adamctl[examples]'"
    )
