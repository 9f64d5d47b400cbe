"""Plug-ins: each is named by an entry point of a group that other packages may add to.

A group knows its names without loading anything. Installed packages are searched only when a group is asked for names
that are not its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from adamctl.errors import ConfigurationError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

T = TypeVar("T")


class PluginGroup(NamedTuple):
    """One group of entry points.

    Attributes:
        group: its name, such as `adamctl.readers`.
        key: what people choose one by, for messages: `data.format`.
        kind: what one is, with its article: `a data format`.
        built_in: names of those that come with adamctl; they are never searched for.
        reserved: names that mean something else, so that an entry point with one of them is not used.
    """

    group: str
    key: str
    kind: str
    built_in: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()

    def installed(self) -> EntryPoints:
        """Returns the entry points of this group in all installed packages, ours included; none is loaded."""
        from importlib.metadata import entry_points  # loads sockets, which programs do without

        return entry_points(group=self.group)

    def has(self, name: str) -> bool:
        """Returns whether there is one of this name."""
        return name in self.built_in or name in self.added()

    def names(self) -> list[str]:
        """Returns all names, ours first."""
        return [*self.built_in, *self.added()]

    def added(self) -> list[str]:
        """Returns the names that other packages add, in order."""
        return sorted({point.name for point in self.installed()} - {*self.built_in, *self.reserved})

    def listed(self) -> str:
        """Returns all names as text, for messages."""
        return ", ".join(self.names()) or "none: no installed package adds one"

    def point(self, name: str) -> EntryPoint:
        """Returns the entry point of one. Raises ConfigurationError: there is none of this name, or there are two."""
        points = [point for point in self.installed() if point.name == name]
        if not points:
            raise ConfigurationError(f"{self.key} {name!r}: expected one of {self.listed()}")
        if len(points) > 1:
            raise ConfigurationError(f"two installed packages add {self.kind} called {name!r}; uninstall one of them")
        return points[0]

    def load(self, name: str) -> tuple[Any, EntryPoint]:
        """Returns what another package describes one with, and its entry point.

        Raises:
            ConfigurationError: there is none of this name, there are two, or it cannot be loaded.
        """
        point = self.point(name)
        try:
            return point.load(), point
        except Exception as error:
            raise ConfigurationError(f"{self.key} {name!r} ({point.value}) cannot be loaded: {error}") from error

    def load_named(self, name: str, description: type[T], noun: str) -> T:
        """Returns a description that has this name in its attribute `name`; `noun` is what it describes: `a reader`.

        Raises:
            ConfigurationError: as `load`; it is no such description, or one of another name.
        """
        found, point = self.load(name)
        where = f"entry point {name!r} ({point.value})"
        if not isinstance(found, description):
            wanted = f"{description.__module__}.{description.__name__}"
            raise ConfigurationError(f"{where}: expected an {wanted}, found {type(found).__name__}")
        its_name = getattr(found, "name", None)
        if its_name != name:
            raise ConfigurationError(f"{where}: expected {noun} of that name, found {its_name!r}")
        return found
