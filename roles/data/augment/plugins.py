"""Augmenters of other packages: each is named by an entry point of the group `adamctl.augmenters`.

Another package adds `[data.augment] use = ["mine"]` by declaring

    [project.entry-points."adamctl.augmenters"]
    mine = "mypackage.augmenter:AUGMENTATION"

where AUGMENTATION is an `Augmentation` (docs/augmentation.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from adamctl.config.augment import AUGMENTERS
from adamctl.config.section import SettingValue
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError
from adamctl.roles.data.augment.chance import Keys


class Examples(NamedTuple):
    """What an augmenter is made for.

    Attributes:
        shape: of one example.
        dtype: of its values: uint8 or float32, as they are in the files.
        white: the largest byte, or what it is among these values.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    white: float


@runtime_checkable
class Augments(Protocol):
    """Changes examples; its method is called from several threads."""

    def apply(self, examples: NDArray[Any], keys: Keys) -> None:
        """Changes `examples` [n, *shape] in place.

        What is left to chance follows from `keys` [n], one for each example and pass, alone
        (`adamctl.roles.data.augment.chance.uniform`): so any data server makes the same, in any order.
        """
        ...


@dataclass(frozen=True)
class Augmentation:
    """One augmenter.

    Attributes:
        name: what `data.augment.use` says, and the name of the entry point.
        open: `module:function` of (settings, Examples) that returns an `Augments`. `settings` is the table
            `data.augment.settings.NAME`, empty if there is none. The module is imported when data are opened. For what
            it cannot do it raises ConfigurationError.
    """

    name: str
    open: str


def open_augmenter(name: str, settings: Mapping[str, SettingValue], examples: Examples) -> Augments:
    """Returns another package's augmenter, whose errors are DamagedDataError.

    Raises:
        ConfigurationError: there is none of this name, there are two, it cannot be loaded, or it refuses.
    """
    found = AUGMENTERS.load_named(name, Augmentation, "an augmenter")
    module, _, function = found.open.partition(":")
    where = f"data.augment.use {name!r} ({found.open})"
    try:
        opened: Callable[..., Any] = getattr(import_module(module), function)
        made = opened(dict(settings), examples)
    except AdamctlError:
        raise
    except Exception as error:
        raise ConfigurationError(f"{where} cannot be opened: {type(error).__name__}: {error}") from error
    if not isinstance(made, Augments):
        raise ConfigurationError(f"{where}: expected an object with a method apply, found {type(made).__name__}")
    return _Named(name, made)


class _Named:
    """An augmenter whose failures name it."""

    def __init__(self, name: str, inner: Augments) -> None:
        self._name, self._inner = name, inner

    def apply(self, examples: NDArray[Any], keys: Keys) -> None:
        try:
            self._inner.apply(examples, keys)
        except AdamctlError:
            raise
        except Exception as error:
            raise DamagedDataError(
                f"data.augment.use {self._name!r} failed with {type(error).__name__}: {error}; "
                "leave it out or ask those who made it"
            ) from error
