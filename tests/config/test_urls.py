"""URLs are told from paths, and only those that were allowed are reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from adamctl.config.urls import Url, checked_url, is_inside, is_url, without_file_scheme
from adamctl.errors import ConfigurationError
from tests.config.small_network import load


def test_urls_and_paths() -> None:
    for text in ("s3://bucket/set", "HTTPS://host/x.npz", "memory://a", "simplecache::s3://bucket", "a::b"):
        assert is_url(text)
    for text in ("mnist", "./set", "/data/set", "~/set", "file:///data/set", "FILE:///data", "local://data", "a:b"):
        assert not is_url(text)
    assert without_file_scheme("file:///data/my%20set") == "/data/my set"
    assert without_file_scheme("/data/file://x") == "/data/file://x"


def test_what_is_checked_has_one_form() -> None:
    assert checked_url("S3://Bucket/set/") == Url("s3://Bucket/set")
    assert checked_url("https://host:8080/a/x.tar?token=1").name == "x.tar"
    assert checked_url("gs://bucket").scheme == "gs"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://bucket/../other", 'a part "." or ".."'),
        ("https://host/sets/%2e%2e/secret", 'a part "." or ".."'),
        ("https://host/./x", 'a part "." or ".."'),
        ("simplecache::s3://bucket/x", "a chain of file systems"),
        ("https://user:password@host/x", "a user or a password"),
        ("https://good%40evil/x", "a user or a password"),
        ("https://host/a\nb", "characters that no URL has"),
        ("https://host/a%00b", "characters that no URL has"),
        ("https://host/" + "a" * 5000, "characters that no URL has, or too many"),
        ("https:///", "found none"),
    ],
)
def test_what_names_no_place_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=r"data\.source: expected one URL such as") as caught:
        checked_url(text)
    assert said in str(caught.value)


def test_only_what_is_below_a_root_is_inside() -> None:
    roots = ("s3://bucket/sets/", "https://host")
    for text in ("s3://bucket/sets", "s3://bucket/sets/a/b", "https://host/x"):
        assert is_inside(checked_url(text), roots)
    for text in ("s3://bucket", "s3://bucket/sets2", "http://host/x", "https://host.evil/x", "gs://bucket/sets"):
        assert not is_inside(checked_url(text), roots)
    assert not is_inside(checked_url("s3://bucket"), ())


@pytest.mark.parametrize("key", ["checkpoint_url", "warmstart_from"])
def test_urls_of_checkpoints_are_checked_before_a_run(tmp_path: Path, key: str) -> None:
    for fits in ("s3://bucket/runs/one", "file:///runs/one", ""):
        load(tmp_path, f"train.{key}={fits}")
    with pytest.raises(ConfigurationError, match=rf"train\.{key}.*a user or a password"):
        load(tmp_path, f"train.{key}=s3://me:secret@bucket/one")
    if key == "checkpoint_url":
        with pytest.raises(ConfigurationError, match=r"train\.checkpoint_url.*expected one URL"):
            load(tmp_path, "train.checkpoint_url=runs/one")
