"""Warped images: exact at whole pixels, as SciPy's elsewhere, and the same bits by every implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from adamctl.kernels.backend import installed
from adamctl.kernels.numeric.warp import Images, Warps, node_counts, warp
from adamctl.roles.data.augment.translation import translate

BACKENDS = [name for name in ("numpy", "numba") if name in installed()]
SHAPE = (9, 7, 2)
IDENTITY = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0))


def images_of(n: int, shape: tuple[int, int, int] = SHAPE) -> Images:
    return np.random.default_rng(5).random((n, *shape), np.float32)


def affine(matrices: NDArray[Any]) -> Warps:
    n = len(matrices)
    nodes, phases = np.empty((n, 2, 0, 0), np.float32), np.zeros((n, 2), np.float32)
    return Warps(np.ascontiguousarray(matrices, np.float32), nodes, phases, 1.0)


def random_warps(n: int, shape: tuple[int, int, int], spacing: float) -> Warps:
    """Warps of which many places lie outside, or on an edge."""
    chosen = np.random.default_rng(6)
    matrices = np.array(IDENTITY) + chosen.uniform(-1, 1, (n, 2, 3)) * (0.3, 0.3, 3)
    nodes = chosen.uniform(-3, 3, (n, 2, *node_counts(*shape[:2], spacing)))
    phases = chosen.random((n, 2), np.float32)
    return Warps(matrices.astype(np.float32), nodes.astype(np.float32), phases, spacing)


def warped(images: Images, warps: Warps, border: float, backend: str) -> Images:
    out = images.copy()
    warp(out, warps, border, backend)
    return out


def bytes_of(images: Images) -> Images:
    return (images * 255).astype(np.uint8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_identity_is_exact(backend: str) -> None:
    images = images_of(3)
    same = affine(np.tile(IDENTITY, (3, 1, 1)))
    np.testing.assert_array_equal(warped(images, same, -0.5, backend).view(np.uint32), images.view(np.uint32))
    np.testing.assert_array_equal(warped(bytes_of(images), same, 7, backend), bytes_of(images))


@pytest.mark.parametrize("backend", BACKENDS)
def test_whole_pixels_are_moved_as_by_translation(backend: str) -> None:
    shifts = np.array([(down, right) for down in range(-8, 9) for right in range(-6, 7)])
    matrices = np.tile(IDENTITY, (len(shifts), 1, 1))
    matrices[:, :, 2] = -shifts
    floats = images_of(len(shifts))
    for images, border in ((floats, -0.5), (bytes_of(floats), 3)):
        got = warped(images, affine(matrices), border, backend)
        mirrored = affine(matrices * np.array([1, -1, 1]) + np.array([(0, 0, 0), (0, 0, SHAPE[1] - 1)]))
        np.testing.assert_array_equal(
            warped(images, mirrored, border, backend), warped(images, mirrored, border, "numpy")
        )  # fmt: skip
        translate(images, shifts, border)
        np.testing.assert_array_equal(got, images)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bytes_are_what_floats_round_to(backend: str) -> None:
    images, warps = bytes_of(images_of(20)), random_warps(20, SHAPE, 3.0)
    floats = warped(images.astype(np.float32), warps, 9, backend)
    got = warped(images, warps, 9, backend)
    assert got.dtype == np.uint8 and len(np.unique(got)) > 200
    np.testing.assert_array_equal(got, np.floor(floats + np.float32(0.5)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [28, 200])
def test_affine_maps_are_those_of_scipy(backend: str, size: int) -> None:
    affine_transform = pytest.importorskip("scipy.ndimage").affine_transform
    images = images_of(6, (size, size - 3, 1))
    matrices = np.empty((6, 2, 3))
    centre = (np.array(images.shape[1:3]) - 1) / 2
    for number, (degrees, scale) in enumerate([(0, 1.1), (10, 1), (-33, 0.8), (90, 1), (180, 1.3), (7.5, 0.5)]):
        sine, cosine = np.sin(np.radians(degrees)), np.cos(np.radians(degrees))
        matrices[number, :, :2] = np.array([[cosine, sine], [-sine, cosine]]) / scale
        matrices[number, :, 2] = centre - matrices[number, :, :2] @ centre + (0.3, -1.7)
    got = warped(images, affine(matrices), 0.25, backend)
    for image, matrix, ours in zip(images, matrices, got, strict=True):
        theirs = affine_transform(
            image[..., 0], matrix[:, :2], matrix[:, 2], order=1, mode="grid-constant", cval=0.25
        )  # fmt: skip
        np.testing.assert_allclose(ours[..., 0], theirs, rtol=0, atol=4e-7 * size)  # places are float32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spacing", [1.0, 2.3, 6.93, 40.0])
def test_displacements_are_those_of_scipys_spline(backend: str, spacing: float) -> None:
    """Of images whose values are the row and the column, which are read where they are taken from."""
    spline = pytest.importorskip("scipy.interpolate").BSpline
    shape = (40, 30, 2)
    image = np.stack(np.meshgrid(np.arange(40), np.arange(30), indexing="ij"), axis=-1).astype(np.float32)
    warps = random_warps(1, shape, spacing)._replace(matrices=np.array([IDENTITY], np.float32))
    got = warped(image[None], warps, -99.0, backend)[0]
    at = [np.arange(size) / spacing + phase for size, phase in zip(shape, warps.phases[0], strict=False)]
    bases = [
        spline(np.arange(-3, count + 4.0), np.eye(count + 3), 3)(place)[:, :count]
        for count, place in zip(warps.nodes.shape[2:], at, strict=True)
    ]
    moved = np.moveaxis(bases[0] @ warps.nodes[0] @ bases[1].T, 0, -1)
    inside = (slice(4, -4), slice(4, -4))
    np.testing.assert_allclose((got - image)[inside], moved[inside], rtol=0, atol=1e-5)


@pytest.mark.skipif("numba" not in BACKENDS, reason="numba is not installed")
@pytest.mark.parametrize("shape", [SHAPE, (1, 1, 1), (28, 28, 1), (33, 17, 3)])
@pytest.mark.parametrize("spacing", [1.7, 6.93])
def test_compiled_code_gives_the_same_bits(shape: tuple[int, int, int], spacing: float) -> None:
    images, warps = images_of(20, shape), random_warps(20, shape, spacing)
    ours, plain = (warped(images, warps, 0.1, backend) for backend in ("numba", "numpy"))
    np.testing.assert_array_equal(ours.view(np.uint32), plain.view(np.uint32))
    assert np.isfinite(plain).all()
    ours, plain = (warped(bytes_of(images), warps, 1, backend) for backend in ("numba", "numpy"))
    np.testing.assert_array_equal(ours, plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_places_that_are_no_numbers_or_far_away_are_border(backend: str) -> None:
    images = images_of(3)
    matrices = np.tile(IDENTITY, (3, 1, 1))
    matrices[:, 0, 2] = np.nan, 1e38, -np.inf
    np.testing.assert_array_equal(warped(images, affine(matrices), 2, backend), np.full_like(images, 2))


@pytest.mark.parametrize("backend", BACKENDS)
def test_phases_just_below_one_stay_within_the_nodes(backend: str) -> None:
    """Three spacings of 9 pixels are 27: the last pixel's place rounds up to a whole number."""
    images = images_of(4, (28, 28, 1))
    nodes = np.full((4, 2, *node_counts(28, 28, 9.0)), 2.0, np.float32)
    phases = np.full((4, 2), np.nextafter(np.float32(1), np.float32(0)))
    warps = Warps(np.tile(np.array(IDENTITY, np.float32), (4, 1, 1)), nodes, phases, np.nextafter(9.0, 0))
    got = warped(images, warps, 0, backend)
    np.testing.assert_allclose(got[:, :-3, :-3], images[:, 2:-1, 2:-1], rtol=0, atol=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    images = images_of(2)
    fits = random_warps(2, SHAPE, 3.0)
    warp(images, fits, 0)
    for wrong in (
        fits._replace(matrices=fits.matrices[:1]),
        fits._replace(nodes=fits.nodes[..., 1:].copy()),
        fits._replace(phases=fits.phases[:, :1]),
    ):
        with pytest.raises(ValueError, match=r"warp: expected \w+ of shape"):
            warp(images, wrong, 0)
