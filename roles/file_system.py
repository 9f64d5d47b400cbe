"""File systems behind URLs, by fsspec: opened by scheme, with errors that say what to install, correct or allow.

Which ones there are depends on what is installed: `adamctl[remote]` has http and https; s3 needs s3fs, gs needs gcsfs
(https://filesystem-spec.readthedocs.io).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from adamctl.config.urls import Url
from adamctl.errors import AdamctlError, ConfigurationError, UnreachableError

_ABSENT: Final = (404, 410)
_FORBIDDEN: Final = (401, 403)
_PACKAGES: Final = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}


def file_system(url: Url, key: str, where: str) -> Any:
    """Returns the file system of a URL's scheme; `key` gave it, and `where` says which machines need its package.

    Raises:
        ConfigurationError: fsspec, or the package for the scheme, is not installed, or there is no such scheme.
    """
    try:
        import fsspec
    except ImportError as error:
        raise ConfigurationError(
            f"{key}: {url} needs fsspec, which is not installed here: pip install 'adamctl[remote]'"
        ) from error
    try:
        return fsspec.filesystem(url.scheme)
    except ImportError as error:
        package = _PACKAGES.get(url.scheme, "what its message names")
        raise ConfigurationError(f"{key}: {url}: {error}; install {package} {where}") from error
    except ValueError as error:
        raise ConfigurationError(f"{key}: {url}: {error}; expected a scheme such as s3, gs or https") from error


@contextmanager
def reaching(address: str, key: str) -> Iterator[None]:
    """Turns what file systems raise into our errors, which name the URL and the key that gave it.

    Raises:
        ConfigurationError: there is no such file, or these credentials may not use it.
        UnreachableError: it does not answer.
    """
    try:
        yield
    except AdamctlError:
        raise
    except FileNotFoundError as error:
        cause = error.__cause__
        status = getattr(cause, "status", 0)
        if status in _FORBIDDEN:
            raise _forbidden(address, cause) from None
        if cause is not None and status not in _ABSENT:  # fsspec says so of a server that does not answer, too
            raise _unreachable(address, cause) from error
        raise ConfigurationError(f"{address}: there is no such file or folder; correct {key}") from error
    except PermissionError as error:
        raise _forbidden(address, error) from None  # its cause would be taken for a permission of this machine
    except Exception as error:
        raise _unreachable(address, error) from error


def _forbidden(address: str, error: object) -> ConfigurationError:
    advice = "give this process credentials that may use it, as fsspec's documents say"
    return ConfigurationError(f"{address}: {error}; {advice}")


def _unreachable(address: str, error: BaseException) -> UnreachableError:
    said = f"{type(error).__name__}: {error}"
    return UnreachableError(f"{address} cannot be reached: {said}; check the network, the address and credentials")
