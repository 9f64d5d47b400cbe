"""How matrices lie, and which routine of numpy's BLAS multiplies them."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.kernels import blas
from adamctl.kernels.blas import NO_TRANSPOSE, TRANSPOSE, can_multiply, routine, storage

ONES = np.ones((6, 8), np.float32)


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        (ONES, (NO_TRANSPOSE, 8)),
        (ONES.T, (TRANSPOSE, 8)),
        (ONES[:, :3], (NO_TRANSPOSE, 8)),
        (ONES[::2], (NO_TRANSPOSE, 16)),
        (ONES[:1], (NO_TRANSPOSE, 8)),
        (ONES[:, :1], (NO_TRANSPOSE, 8)),
        (ONES[:, ::2], None),
        (np.broadcast_to(ONES[0], (6, 8)), None),
        (ONES.astype(np.float64), None),
    ],
)
def test_a_matrix_lies_in_rows_or_columns(matrix: np.ndarray, expected: tuple[int, int] | None) -> None:
    assert storage(matrix) == expected
    assert storage(matrix, "out") == (None if expected and expected[0] == TRANSPOSE else expected)


@pytest.mark.parametrize(
    ("m", "n", "k", "expected"),
    [(2, 3, 4, "gemm"), (1, 3, 4, "gemv"), (2, 1, 4, "gemv"), (1, 1, 4, "dot"), (2, 3, 1, "gemm"), (1, 1, 1, "gemm")],
)
def test_vectors_have_routines_of_their_own(m: int, n: int, k: int, expected: str) -> None:
    name, arguments = routine(ONES[:m, :k], ONES.T[:k, :n], np.zeros((m, n), np.float32))
    assert name == expected
    assert all(isinstance(argument, (int, float, np.ndarray)) for argument in arguments)


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(TypeError, match=r"found \[\[6, 8\], \[6, 8\], \[6, 8\]\]"):
        routine(ONES, ONES, ONES)
    with pytest.raises(TypeError, match="expected a matrix stored by rows or columns"):
        routine(ONES[:, ::2], ONES[:4], np.zeros((6, 8), np.float32))


def test_without_a_known_blas_nothing_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    other, out = ONES.T.copy(), np.zeros((6, 6), np.float32)
    found = blas.blas()
    assert can_multiply(ONES, other, out) == (found is not None)
    assert not can_multiply(ONES, ONES.T, out)
    if found is not None:
        assert found.bits in (32, 64) and set(found.addresses) == {"gemm", "gemv", "dot"}
    monkeypatch.setattr(blas, "blas", lambda: None)
    assert not can_multiply(ONES, other, out)
