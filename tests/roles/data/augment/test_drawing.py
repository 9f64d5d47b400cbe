"""Adam 3.1: no variant of an image is seen twice, and every data server makes the same one of an example in a pass."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adamctl.kernels.backend import installed, load
from adamctl.kernels.needed import WARP_KERNELS
from adamctl.kernels.numeric.warp import Warps, warp
from adamctl.roles.data.augment.chance import Numbers, keys_of, uniform_pairs
from adamctl.roles.data.augment.drawing import WarpRanges, draw_warps

EVERYTHING = WarpRanges(10, 0.1, 0.2, 2, 1, True, 4, 34)
seeds = st.integers(0, 2**63 - 1)
passes = st.integers(0, 10**6)
EXPECTED_MATRIX = [
    0.988075315952301,
    -0.17235615849494934,
    0.35983768105506897,
    -0.12728102505207062,
    -0.9959380030632019,
    19.214950561523438,
]
EXPECTED_ELASTIC = [0.3945128321647644, 0.888815701007843, 0.6154234409332275, -1.944319486618042]
UNIFORM = {"rotate": 90, "scale": 0.1, "shear": 0.2, "translate": 2}


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Kernels are there before hypothesis looks at how long an example takes."""
    if "numba" in installed():
        load(WARP_KERNELS)


def drawn(ranges: WarpRanges, n: int = 2000, pass_number: int = 3, shape: tuple[int, int] = (28, 21)) -> Warps:
    return draw_warps(np.arange(n), 7, pass_number, ranges, *shape)


def matrices(ranges: WarpRanges, n: int = 2000) -> Numbers:
    return drawn(ranges, n).matrices.astype(np.float64)


def source(warps: Warps, place: tuple[float, float]) -> Numbers:
    """Where the pixel at `place` comes from, without displacement, [n, 2]."""
    parts = warps.matrices.astype(np.float64)
    return parts[:, :, 0] * place[0] + parts[:, :, 1] * place[1] + parts[:, :, 2]


# --- keys -----------------------------------------------------------------------------------------------------------


@given(seeds, passes)
def test_a_warp_depends_on_seed_pass_and_example_only(seed: int, pass_number: int) -> None:
    indices = np.arange(20)
    ours = draw_warps(indices, seed, pass_number, EVERYTHING, 12, 9)
    again = draw_warps(indices[::-3], seed, pass_number, EVERYTHING, 12, 9)
    for one, other in zip(ours[:3], again[:3], strict=True):
        np.testing.assert_array_equal(one[::-3], other)  # type: ignore[index]
    for changed in (
        draw_warps(indices, seed, pass_number + 1, EVERYTHING, 12, 9),
        draw_warps(indices, seed + 1, pass_number, EVERYTHING, 12, 9),
        draw_warps(indices + 1000, seed, pass_number, EVERYTHING, 12, 9),
    ):
        for number in range(3):
            assert (np.asarray(ours[number]) != np.asarray(changed[number])).reshape(20, -1).any(axis=1).all()
    assert len(np.unique(ours.nodes)) > 0.99 * ours.nodes.size  # of 24 bits each, so a few are alike


def test_warps_never_change_between_releases_or_machines() -> None:
    warps = drawn(EVERYTHING, 2)
    assert warps.matrices[1].ravel().tolist() == EXPECTED_MATRIX
    assert [*warps.phases[1].tolist(), *warps.nodes[1, :, 0, 0].tolist()] == EXPECTED_ELASTIC


def test_one_setting_does_not_change_what_another_draws() -> None:
    together = drawn(EVERYTHING)
    np.testing.assert_array_equal(drawn(WarpRanges(sigma=4, alpha=34)).nodes, together.nodes)
    np.testing.assert_array_equal(drawn(EVERYTHING._replace(alpha=0)).matrices, together.matrices)


@pytest.mark.skipif("numba" not in installed(), reason="numba is not installed")
@given(seeds, passes)
def test_compiled_code_draws_the_same_bits(seed: int, pass_number: int) -> None:
    keys, draws = keys_of(np.arange(9), seed, pass_number), np.arange(5, 30)
    ours, plain = (uniform_pairs(keys, draws, kernels) for kernels in ("numba", "numpy"))
    np.testing.assert_array_equal(ours.view(np.uint32), plain.view(np.uint32))
    assert 0 <= plain.min() < 0.1 and 0.9 < plain.max() < 1


# --- affine ---------------------------------------------------------------------------------------------------------


def test_nothing_asked_for_is_the_identity_and_reflection_is_exact() -> None:
    images = np.random.default_rng(2).random((50, 6, 9, 2), np.float32)
    out = images.copy()
    warp(out, drawn(WarpRanges(), 50, shape=(6, 9)), 0)
    np.testing.assert_array_equal(out, images)
    warp(out, drawn(WarpRanges(reflect=True), 50, shape=(6, 9)), 0)
    same = (out == images).all(axis=(1, 2, 3))
    np.testing.assert_array_equal(out[~same], images[~same, :, ::-1])
    assert 10 < same.sum() < 40


def test_an_affine_map_is_reflect_scale_shear_rotate_move_about_the_centre() -> None:
    """Each part from the draws of that part alone; all of them together by their product."""
    centre = np.array([13.5, 10.0])
    turned = np.linalg.inv(matrices(WarpRanges(rotate=180))[:, :, :2])
    scaled = np.linalg.inv(matrices(WarpRanges(scale=0.1))[:, :, :2])
    sheared = np.linalg.inv(matrices(WarpRanges(shear=0.2))[:, :, :2])
    mirrored = np.linalg.inv(matrices(WarpRanges(reflect=True))[:, :, :2])
    moves = centre - source(drawn(WarpRanges(translate=2)), (13.5, 10.0))
    np.testing.assert_allclose(turned @ turned.transpose(0, 2, 1), np.tile(np.eye(2), (2000, 1, 1)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.det(turned), 1, rtol=0, atol=1e-6)
    np.testing.assert_allclose(scaled, scaled[:, :1, :1] * np.eye(2), rtol=0, atol=1e-6)
    np.testing.assert_allclose(sheared[:, 0], np.tile([1.0, 0.0], (2000, 1)), rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.abs(mirrored), np.tile(np.eye(2), (2000, 1, 1)))
    together = drawn(WarpRanges(180, 0.1, 0.2, 2, 3, True))
    crops = centre - source(drawn(WarpRanges(crop=3)), (13.5, 10.0))
    np.testing.assert_array_equal(np.unique(crops), np.arange(-3, 4))
    expected = turned @ sheared @ scaled @ mirrored
    np.testing.assert_allclose(
        np.linalg.inv(together.matrices[:, :, :2].astype(np.float64)), expected, rtol=0, atol=2e-6
    )
    for number, move in enumerate((moves + crops)[:20]):
        np.testing.assert_allclose(source(together, tuple(centre + move))[number], centre, rtol=0, atol=2e-6)


def test_draws_are_uniform_within_their_ranges_and_independent() -> None:
    warps = [matrices(WarpRanges(**{name: value}), 20_000) for name, value in UNIFORM.items()]  # type: ignore
    parts = [
        np.degrees(np.arctan2(warps[0][:, 1, 0], warps[0][:, 0, 0])) / 90,
        (1 / warps[1][:, 0, 0] - 1) / 0.1,
        -warps[2][:, 1, 0] / 0.2,
        warps[3][:, 0, 2] / 2,
        warps[3][:, 1, 2] / 2,
    ]
    for part in parts:
        assert np.abs(part).max() <= 1 + 1e-6
        counts, _ = np.histogram(part, 20, (-1, 1))
        assert np.abs(counts - 1000).max() < 5 * 1000**0.5
    assert np.abs(np.corrcoef(parts) - np.eye(5)).max() < 5 / 20_000**0.5


# --- elastic --------------------------------------------------------------------------------------------------------


def displacements(n: int, size: int, sigma: float, alpha: float) -> Numbers:
    """Fields as warped images show them, [n, 2, size, size]: of images whose values are rows and columns."""
    edge = 40  # so that no place that is looked at comes from outside
    whole = size + 2 * edge
    image = np.stack(np.meshgrid(np.arange(whole), np.arange(whole), indexing="ij"), axis=-1).astype(np.float32)
    warps = drawn(WarpRanges(sigma=sigma, alpha=alpha), n, shape=(whole, whole))
    out = np.tile(image, (n, 1, 1, 1))
    warp(out, warps, 0)
    return np.moveaxis((out - image)[:, edge:-edge, edge:-edge], -1, 1).astype(np.float64)


def correlation(fields: Numbers, lag: int) -> float:
    return float((fields[..., lag:] * fields[..., : fields.shape[-1] - lag]).mean() / (fields**2).mean())


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "alpha"), [(4.0, 34.0), (2.0, 8.0)])
def test_displacements_are_as_scipys_gaussian_gives_them(sigma: float, alpha: float) -> None:
    """Standard deviation within 2%, correlation within 0.05 at every lag, along both axes."""
    gaussian_filter = pytest.importorskip("scipy.ndimage").gaussian_filter
    ours = displacements(800, 40, sigma, alpha)
    noise = np.random.default_rng(1).uniform(-1, 1, (800, 2, 40, 40))
    theirs = alpha * gaussian_filter(noise, (0, 0, sigma, sigma), mode="wrap", truncate=5)
    assert ours.std() == pytest.approx(theirs.std(), rel=0.02)
    assert abs(ours.mean()) < 0.05 * ours.std()
    for lag in range(1, int(4 * sigma)):
        wanted = correlation(theirs, lag)
        assert correlation(ours, lag) == pytest.approx(wanted, abs=0.05)
        assert correlation(ours.swapaxes(2, 3), lag) == pytest.approx(wanted, abs=0.05)
    assert abs((ours[:, 0] * ours[:, 1]).mean()) < 0.05 * ours.var()


def test_displacements_have_the_standard_deviation_of_the_formula() -> None:
    """Simard's alpha * Gaussian * uniform(-1, 1) has alpha / sqrt(3) / (2 sqrt(pi) sigma)."""
    fields = displacements(150, 40, 4, 34)
    assert fields.std() == pytest.approx(34 / 3**0.5 / (2 * np.pi**0.5 * 4), rel=0.04)


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (WarpRanges(rotate=181), "rotate: expected at least 0 and at most 180; found 181"),
        (WarpRanges(scale=1), "scale: expected at least 0 and below 1; found 1"),
        (WarpRanges(shear=-0.1), "shear: expected at least 0; found -0.1"),
        (WarpRanges(translate=float("nan")), "translate: expected at least 0; found nan"),
        (WarpRanges(alpha=34), "sigma: expected at least 0.5 pixels; found 0.0"),
        (WarpRanges(sigma=4, alpha=float("inf")), "alpha: expected at least 0; found inf"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong: WarpRanges, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        drawn(wrong)
