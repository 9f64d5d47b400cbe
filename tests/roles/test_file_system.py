"""What stands behind a URL: opened by its scheme, and each error says what to do and which key gave the URL."""

from __future__ import annotations

import pytest

from adamctl.config.urls import checked_url
from adamctl.errors import AdamctlError, ConfigurationError, DamagedDataError, UnreachableError
from adamctl.roles.file_system import file_system, reaching

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")


def caused(error: Exception, status: int) -> Exception:
    """Returns an error as fsspec raises it for an answer of a web server."""
    cause = OSError("the answer")
    cause.status = status  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("raised", "kind", "text"),
    [
        (FileNotFoundError("x"), ConfigurationError, "there is no such file or folder; correct data.source"),
        (caused(FileNotFoundError("x"), 404), ConfigurationError, "there is no such file or folder"),
        (caused(FileNotFoundError("x"), 403), ConfigurationError, "give this process credentials"),
        (caused(FileNotFoundError("x"), 500), UnreachableError, "cannot be reached: OSError: the answer"),
        (PermissionError("denied"), ConfigurationError, "denied; give this process credentials"),
        (OSError("no more room"), UnreachableError, "cannot be reached: OSError: no more room; check the network"),
        (DamagedDataError("ours"), DamagedDataError, "ours"),
    ],
)
def test_each_error_says_what_to_do(raised: Exception, kind: type[AdamctlError], text: str) -> None:
    with pytest.raises(kind) as found, reaching("s3://bucket/a", "data.source"):
        raise raised
    assert text in str(found.value)
    assert ("s3://bucket/a" in str(found.value)) is (raised is not found.value)


def test_a_scheme_that_there_is_not_names_the_key() -> None:
    with pytest.raises(ConfigurationError, match=r"^train\.checkpoint_url: nosuch://a/b: .*expected a scheme"):
        file_system(checked_url("nosuch://a/b"), "train.checkpoint_url", "here")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(scheme: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec, "filesystem", missing)
    with pytest.raises(ConfigurationError, match=r"^data\.source: s3://a/b: .*; install s3fs on every machine"):
        file_system(checked_url("s3://a/b"), "data.source", "on every machine that reads data")
