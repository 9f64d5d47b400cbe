"""A folder of certificates: what is refused when it is read, and how a new certificate takes the place of the old."""

from __future__ import annotations

import logging
import resource
import shutil
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.tls.authority import new_authority
from adamctl.net.tls.credentials import (
    Credentials,
    Loaded,
    chosen_credentials,
    environment_credentials,
    load,
    write_private,
)
from tests.net.tls.certificates import Authority, place


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Clock:
    """Seconds since 1970, moved by hand; `look` is only done once a second."""

    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        self.now_s += 2.0
        return self.now_s


def test_a_folder_says_who_it_is_for_and_until_when(authority: Authority) -> None:
    loaded = load(authority.write("ps", "ps-0", lifetime_s=3600))
    assert str(loaded.identity) == "adam://nord/ps/ps-0"
    assert 3500 < loaded.lifetime.not_after_s - loaded.lifetime.not_before_s - 300 <= 3600


@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "node.key"])
def test_a_missing_file_is_named(authority: Authority, name: str) -> None:
    folder = authority.write("ps", "ps-0")
    (folder / name).unlink()
    with pytest.raises(ConfigurationError, match=rf"{name}: No such file.*adamctl tls create"):
        load(folder)


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ca\.crt: File name too long; expected ca\.crt, node\.crt"):
        load(tmp_path / ("x" * 300))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_a_key_that_others_can_read_is_refused(authority: Authority, mode: int) -> None:
    folder = authority.write("ps", "ps-0")
    (folder / "node.key").chmod(mode)
    with pytest.raises(ConfigurationError, match=rf"node.key: other users may read it \(mode {mode:04o}\).*chmod 600"):
        load(folder)


@pytest.mark.parametrize("name", ["ca.crt", "node.crt", "node.key"])
def test_a_damaged_file_is_refused(authority: Authority, name: str) -> None:
    folder = authority.write("ps", "ps-0")
    place(folder / name, b"-----BEGIN NONSENSE-----\nAAAA\n-----END NONSENSE-----\n")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        load(folder)


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    folder = authority.write("ps", "ps-0")
    shutil.copy(authority.write("ps", "ps-1") / "node.key", folder / "node.key")
    with pytest.raises(ConfigurationError, match="cannot be used: KEY_VALUES_MISMATCH"):
        load(folder)


def test_a_certificate_of_another_authority_is_refused(authority: Authority) -> None:
    folder = authority.write("ps", "ps-0", trusts=new_authority("nord").certificate)
    with pytest.raises(ConfigurationError, match=r"node.crt: its certificate is of another authority; .*tls check"):
        load(folder)


def test_an_expired_certificate_is_refused_when_a_process_starts(authority: Authority) -> None:
    with pytest.raises(ConfigurationError, match=r"node.crt: its certificate has expired; .*adamctl tls renew"):
        load(authority.write("ps", "ps-0", begin_s=-7200, lifetime_s=3600))


def test_an_authority_is_no_node(authority: Authority) -> None:
    folder = authority.write("ps", "ps-0")
    place(folder / "node.crt", authority.pair.certificate)
    place(folder / "node.key", authority.pair.key)
    with pytest.raises(ConfigurationError, match=r"node\.crt"):
        load(folder)


def test_a_new_certificate_is_used_as_soon_as_it_is_there(authority: Authority) -> None:
    folder = authority.write("ps", "ps-0", lifetime_s=3600)
    credentials = Credentials(folder, Clock())
    before = credentials.current
    assert credentials.current is before  # nothing has changed
    authority.write("ps", "ps-0", lifetime_s=7200)
    after = credentials.current
    assert after is not before and after.lifetime.not_after_s > before.lifetime.not_after_s
    assert after.server is not before.server and after.client is not before.client


def test_files_are_looked_at_once_a_second(authority: Authority) -> None:
    now = [1e9]
    credentials = Credentials(authority.write("ps", "ps-0"), lambda: now[0])
    before = credentials.current
    authority.write("ps", "ps-0")
    assert credentials.current is before
    now[0] += 1
    assert credentials.current is not before


def test_the_old_certificate_stays_while_the_new_one_is_wrong(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.write("ps", "ps-0")
    credentials = Credentials(folder, Clock())
    before = credentials.current
    caplog.set_level(logging.INFO)
    place(folder / "node.crt", b"half a cert")
    assert credentials.current is before and "stays as it was" not in caplog.text  # it may just be written
    for _ in range(3):
        assert credentials.current is before
    assert caplog.text.count("the certificate stays as it was") == 1 and str(folder) in caplog.text
    authority.write("ps", "ps-0")
    assert credentials.current is not before and "was read again" in caplog.text


def test_files_that_cannot_be_used_yet_are_tried_again(
    authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an authority whose clock is ahead, for instance; the files stay as they are."""
    credentials = Credentials(authority.write("ps", "ps-0"), Clock())
    before = credentials.current
    authority.write("ps", "ps-0")

    def not_yet(folder: Path) -> Loaded:
        raise ConfigurationError(f"{folder}: its certificate is not yet valid")

    with monkeypatch.context() as patched:
        patched.setattr("adamctl.net.tls.credentials.load", not_yet)
        assert all(credentials.current is before for _ in range(4))
    assert caplog.text.count("is not yet valid") == 1
    assert credentials.current is not before


def test_a_key_that_others_could_read_is_taken_once_they_cannot(authority: Authority) -> None:
    """What the message advises, chmod, changes neither the file nor the time at which it was written."""
    folder = authority.write("ps", "ps-0")
    credentials = Credentials(folder, Clock())
    before = credentials.current
    authority.write("ps", "ps-0")
    (folder / "node.key").chmod(0o644)
    for _ in range(3):
        assert credentials.current is before
    (folder / "node.key").chmod(0o600)
    assert credentials.current is not before


def test_asked_to_read_again_it_says_at_once_what_is_wrong(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    folder = authority.write("ps", "ps-0")
    credentials = Credentials(folder, Clock())
    assert credentials.look(anew=True)
    (folder / "node.key").chmod(0o644)
    assert not credentials.look(anew=True) and "other users may read it" in caplog.text


def test_a_process_keeps_its_identity(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    folder = authority.write("worker", "w-1", name="here")
    credentials = Credentials(folder, Clock())
    authority.write("operator", "anna", name="here")
    assert not credentials.look(anew=True)
    assert str(credentials.current.identity) == "adam://nord/worker/w-1" and "restart the process" in caplog.text


def test_a_key_of_which_only_a_part_is_on_disk_takes_no_others_place(tmp_path: Path) -> None:
    place = tmp_path / "node.key"
    write_private(place, b"before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))  # as a disk that is nearly full
    try:
        with pytest.raises(ConfigurationError, match=r"node\.key: cannot be written: File too large"):
            write_private(place, bytes(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert place.read_bytes() == b"before"


def test_a_bundle_of_two_authorities_takes_both_during_a_change(authority: Authority, tmp_path: Path) -> None:
    new = Authority(tmp_path / "new")
    both = authority.pair.certificate + new.pair.certificate
    assert load(authority.write("ps", "ps-0", trusts=both)) and load(new.write("ps", "ps-0", trusts=both))


def test_the_environment_names_the_folder(authority: Authority) -> None:
    folder = authority.write("ps", "ps-0")
    found = environment_credentials({"ADAMCTL_TLS": str(folder)})
    assert found is not None and found.current.identity.node == "ps-0"
    assert environment_credentials({}) is None and environment_credentials({"ADAMCTL_TLS": ""}) is None
    assert chosen_credentials(None, {"ADAMCTL_TLS": str(folder)}) is None
    with pytest.raises(ConfigurationError, match=r"expected ca\.crt, node\.crt and node\.key there"):
        environment_credentials({"ADAMCTL_TLS": str(folder / "nowhere")})
