"""The keys of `[data.augment]`, and which of them fit the examples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from adamctl.config.section import Section, SettingValue
from adamctl.plugins import PluginGroup

AUGMENTERS: Final = PluginGroup("adamctl.augmenters", "data.augment.use", "an augmenter")
"""What `use` may name. Here they are names alone; `adamctl.roles.data.augment.plugins` loads them."""


class ElasticConfig(Section, frozen=True):
    """Elastic distortion: every pixel moves by a random field of displacements, alike in its neighbourhood.

    Attributes:
        sigma: pixels: how far displacements are alike, as the standard deviation of the Gaussian of Simard et al. 2003.
        alpha: how strong: displacements have the standard deviation of alpha times that Gaussian over numbers from -1
            to 1; 0 distorts nothing. Simard's best values for 28 x 28 are sigma = 4, alpha = 34.
    """

    sigma: float = 4.0
    alpha: float = 0.0


class SoundConfig(Section, frozen=True):
    """What each pass does to every training example of `format = "audio"`; [speech.md](speech.md) has the formulas.

    Attributes:
        gain: decibels, up to this either way; without `data.features.center`, which takes it out again.
        noise: the largest power of added noise, as a share of the example's own: 0.1 is a ratio of 10 decibels.
        shift: frames, up to this either way; at most `data.features.context`.
        mask_frames, mask_bands: the most consecutive frames, and bands, that an example loses; fewer than it has.
    """

    gain: float = 0.0
    noise: float = 0.0
    shift: int = 0
    mask_frames: int = 0
    mask_bands: int = 0


class AugmentConfig(Section, frozen=True):
    """What each pass does to every training image, anew (Adam 3.1). Validation and test images stay as they are.

    All draws are uniform and depend on the seed, the pass and the image alone. Uncovered pixels get the value of a zero
    byte. [augmentation.md](augmentation.md) says what follows what.

    Attributes:
        rotate: degrees, up to this either way.
        scale: images grow by a factor in 1 - scale .. 1 + scale.
        shear: columns to the right for each row further down, up to this either way.
        translate: pixels down and right, fractions too, up to this either way; `data.translate` moves by whole pixels
            and is cheaper. Less than half the images' height and width.
        reflect: every second image, on average, has left and right swapped.
        brightness: what is added to all values of an image, up to this either way, as a share of white.
        contrast: values' distance from grey is multiplied by a factor in 1 - contrast .. 1 + contrast.
        crop: so many pixels of border are added on each side, and an image of the old size is cut out at a random
            place. Less than the images' height and width.
        reuse: passes that share one variant of each image.
        use: augmenters of other packages (entry point group `adamctl.augmenters`), which change what all of the above
            have made, in this order.
        settings: for each of those a table of what it reads, `data.augment.settings.NAME`.
    """

    rotate: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    translate: float = 0.0
    reflect: bool = False
    elastic: ElasticConfig = ElasticConfig()
    brightness: float = 0.0
    contrast: float = 0.0
    crop: int = 0
    reuse: int = 1
    use: tuple[str, ...] = ()
    settings: dict[str, dict[str, SettingValue]] = msgspec.field(default_factory=dict)
    sound: SoundConfig = SoundConfig()

    @property
    def warps(self) -> bool:
        """Whether pixels change their places."""
        moves = self.rotate or self.scale or self.shear or self.translate or self.crop
        return bool(moves or self.reflect or self.elastic.alpha)

    @property
    def changes_values(self) -> bool:
        """Whether pixels change their values."""
        return bool(self.brightness or self.contrast)

    @property
    def changes_sound(self) -> bool:
        """Whether sound is changed."""
        return self.sound != SoundConfig()


IMAGE_KEYS = ("rotate", "scale", "shear", "translate", "reflect", "elastic", "brightness", "contrast", "crop")
"""Keys that are about images alone."""


def augment_problems(augment: AugmentConfig, shape: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yields (key of `data.augment`, what is wrong with it) for examples of this shape."""
    plain = AugmentConfig()
    for name in augment.use:
        if not AUGMENTERS.has(name):
            yield "use", f'found "{name}"; expected augmenters that are installed here, {AUGMENTERS.listed()}'
    for name in augment.settings:
        if name not in augment.use:
            yield f"settings.{name}", f'it is for an augmenter that is not used; add "{name}" to data.augment.use'
    if len(shape) != 3:
        for key in IMAGE_KEYS:
            if getattr(augment, key) != getattr(plain, key):
                yield key, f"it changes images, so model.input must be [height, width, channels], found {list(shape)}"
        return
    size = f"the images' height and width, {shape[0]} x {shape[1]}"
    if 2 * augment.translate >= min(shape[:2]):
        yield "translate", f"found {augment.translate:g}; expected less than half of {size}"
    if augment.crop >= min(shape[:2]):
        yield "crop", f"found {augment.crop}; expected less than {size}"


def sound_problems(sound: SoundConfig, context: int, bands: int, *, center: bool) -> Iterator[tuple[str, str]]:
    """Yields (key of `data.augment.sound`, what is wrong with it) for frames with `context` neighbours on each side."""
    if sound.gain and center:
        yield (
            "gain",
            f"found {sound.gain:g} with data.features.center = true, which takes it out again; set one of them to 0 or "
            "false",
        )
    if sound.shift > context:
        yield "shift", f"found {sound.shift}; expected at most data.features.context, {context}"
    if sound.mask_frames > 2 * context:
        yield (
            "mask_frames",
            f"found {sound.mask_frames}; expected fewer than the {2 * context + 1} frames of an example",
        )
    if sound.mask_bands >= bands:
        yield "mask_bands", f"found {sound.mask_bands}; expected fewer than data.features.bands, {bands}"
