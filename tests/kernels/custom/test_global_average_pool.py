"""Global average pooling: its definition, gradients and parts."""

from __future__ import annotations

import numpy as np
import pytest

from adamctl.errors import ConfigurationError
from adamctl.kernels.custom.global_average_pool import GlobalAveragePool
from adamctl.kernels.layers.custom import Custom
from adamctl.kernels.slicing import OutputSlice
from adamctl.model.custom.resolved import resolved
from tests.kernels.kernel_checks import check_gradients, check_slices, run


def build(backend: str) -> Custom:
    return Custom(resolved(GlobalAveragePool(), (4, 3, 5)), "global_average_pool1", backend)


def test_it_is_the_mean_of_each_map() -> None:
    given = run(build("numpy"), 3, seed=2)
    np.testing.assert_allclose(given.outputs, given.inputs.mean((1, 2)), atol=1e-6)


def test_gradients_are_right() -> None:
    check_gradients(build)


def test_parts_make_the_whole() -> None:
    check_slices(build, [OutputSlice("units", 0, 2), OutputSlice("units", 2, 3), OutputSlice("units", 3, 5)])


def test_a_vector_has_no_maps() -> None:
    with pytest.raises(ConfigurationError, match="expected an image"):
        resolved(GlobalAveragePool(), (5,))
