"""`adamctl tls`: from an authority to nodes that trust each other, and a change of everything while they run."""

from __future__ import annotations

import importlib.util
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from adamctl.net.tls.credentials import load
from adamctl.net.tls.expiry import DAY_S


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ADAMCTL_TLS", raising=False)
    return tmp_path


def tls(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["tls", *arguments], catch_exceptions=False, standalone_mode=False)
    assert result.return_value in (0, 4, None), result.output
    return result.output


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        tls(*arguments)
    return str(caught.value)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_two_commands_make_a_folder_that_a_node_can_use(here: Path) -> None:
    tls("create-ca", "nord")
    assert "adam://nord/ps/ps-1" in tls("create", "ps", "ps-1")
    folder = here / "tls" / "ps-ps-1"
    assert str(load(folder).identity) == "adam://nord/ps/ps-1"
    assert sorted(path.name for path in folder.iterdir()) == ["ca.crt", "node.crt", "node.key"]  # never the CA's key
    assert mode(here / "tls" / "ca" / "ca.key") == mode(folder / "node.key") == 0o600
    assert mode(here / "tls" / "ca") == mode(folder) == 0o700
    authority_key = (here / "tls" / "ca" / "ca.key").read_bytes()
    assert all(authority_key not in path.read_bytes() for path in folder.iterdir())


def test_an_operator_has_30_days_and_a_node_90(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create-operator", "anna")
    tls("create", "ps", "ps-1")
    for name, days in (("operator-anna", 30), ("ps-ps-1", 90)):
        lifetime = load(here / "tls" / name).lifetime
        assert (lifetime.not_after_s - lifetime.not_before_s) / DAY_S == pytest.approx(days, abs=0.1)


def test_nothing_is_overwritten(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    assert "there is an authority already" in refused("create-ca", "nord")
    assert "adamctl tls renew" in refused("create", "ps", "ps-1")


def test_a_damaged_file_is_named(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    damaged = Path("tls", "ps-ps-1", "node.crt")
    damaged.write_text("nonsense")
    for arguments in (("renew", str(damaged.parent)), ("show", str(damaged.parent)), ("sign", str(damaged))):
        assert refused(*arguments).startswith(f"{damaged}: expected ")
    assert f"adamctl tls show {damaged.parent}" in refused("check", str(damaged.parent))


def test_what_cannot_be_named_is_refused(here: Path) -> None:
    assert "create-ca" in refused("create", "ps", "ps-1")  # no authority yet
    tls("create-ca", "nord")
    assert "expected a node of" in refused("create", "ps", "a b")
    assert "without a point" in refused("create", "ps", "a.b")
    assert "expected a role of" in refused("create", "p/s", "a")


def test_an_authority_whose_key_others_can_read_is_not_used(here: Path) -> None:
    tls("create-ca", "nord")
    (here / "tls" / "ca" / "ca.key").chmod(0o640)
    assert "whoever has can be anyone" in refused("create", "ps", "ps-1")


def test_a_key_need_not_leave_its_machine(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1", "--request", "nord")
    folder = here / "tls" / "ps-ps-1"
    assert sorted(path.name for path in folder.iterdir()) == ["node.csr", "node.key"]
    tls("sign", "tls/ps-ps-1/node.csr")
    (folder / "ca.crt").write_bytes((here / "tls" / "ca" / "ca.crt").read_bytes())
    assert str(load(folder).identity) == "adam://nord/ps/ps-1"


@pytest.mark.parametrize("command", [("create-ca", "nord"), ("create", "ps", "ps-1")])
def test_what_failed_in_the_middle_can_be_begun_anew(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if command[0] == "create":
        tls("create-ca", "nord")
    replaced: list[object] = []

    def interrupted(new: Path, path: Path) -> None:
        if replaced:
            raise OSError(28, "No space left on device")
        replaced.append(path)
        Path(new).rename(path)

    with monkeypatch.context() as patched:
        patched.setattr("adamctl.net.tls.credentials.os.replace", interrupted)
        assert "No space left on device" in refused(*command)
    assert len(replaced) == 1
    tls(*command)


def test_a_key_without_a_certificate_is_not_overwritten(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1", "--request", "nord")
    key = here / "tls" / "ps-ps-1" / "node.key"
    before = key.read_bytes()
    assert "a request that is not signed yet (adamctl tls sign)" in refused("create", "ps", "ps-1")
    assert key.read_bytes() == before
    tls("sign", "tls/ps-ps-1/node.csr")
    assert "there is a certificate already" in refused("create", "ps", "ps-1")


def test_a_request_for_much_power_is_signed_only_by_name(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create-operator", "eve", "--request", "nord")
    request = "tls/operator-eve/node.csr"
    assert "give --role operator if that is meant" in refused("sign", request)
    assert "expected a request for a worker" in refused("sign", request, "--role", "worker")
    tls("sign", request, "--role", "operator")
    tls("create", "ps", "a", "--request", "sued")
    assert "authority's cluster nord" in refused("sign", "tls/ps-a/node.csr")


def test_show_and_check_say_whom_and_until_when(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1", "--days", "5")
    text = tls("show", "tls/ps-ps-1")
    assert "for adam://nord/ps/ps-1" in text and "authority of adam://nord" in text and "5 days" in text
    shown: dict[str, Any] = json.loads(tls("show", "tls/ps-ps-1/node.crt", "--json"))
    assert shown["certificates"][0]["uri"] == "adam://nord/ps/ps-1"
    monkeypatch.setenv("ADAMCTL_TLS", "tls/ps-ps-1")
    assert "can be used until" in tls("check") and "it allows ps as ps-1" in tls("check")
    tls("create", "ps", "ps-2", "--days", "0.0001")
    result = CliRunner().invoke(application, ["tls", "check", "tls/ps-ps-2"], standalone_mode=False)
    assert result.return_value == 4 and "adamctl tls renew tls/ps-ps-2" in result.output
    monkeypatch.delenv("ADAMCTL_TLS")
    assert "set ADAMCTL_TLS" in refused("check")


def test_a_file_without_a_certificate_is_named(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    (here / "tls" / "ps-ps-1" / "node.crt").write_text("no certificate")
    for command in ("show", "renew"):
        assert refused(command, "tls/ps-ps-1").startswith("tls/ps-ps-1/node.crt: expected certificates in PEM")
    (here / "node.csr").write_text("no request")
    assert refused("sign", "node.csr").startswith("node.csr: expected a request to sign in PEM")


def test_a_certificate_that_is_for_no_node_is_named(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    (here / "tls" / "ps-ps-1" / "node.crt").write_bytes((here / "tls" / "ca" / "ca.crt").read_bytes())
    assert refused("renew", "tls/ps-ps-1").startswith("tls/ps-ps-1/node.crt: expected a certificate for adam://")


def test_a_damaged_authority_is_named(here: Path) -> None:
    tls("create-ca", "nord")
    (here / "tls" / "ca" / "ca.key").write_text("no key")
    assert "ca.key, cannot be read" in refused("create", "ps", "ps-1")
    (here / "tls" / "ca" / "ca.crt").write_text("no certificate")
    assert refused("create", "ps", "ps-1").startswith("tls/ca/ca.crt: expected certificates in PEM")


def test_renewed_certificates_have_new_keys_and_the_same_identity(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1", "--days", "1")
    tls("create-operator", "anna", "--days", "1")
    folders = [here / "tls" / name for name in ("ps-ps-1", "operator-anna")]
    keys = [(folder / "node.key").read_bytes() for folder in folders]
    tls("renew", *map(str, folders))
    for folder, key in zip(folders, keys, strict=True):
        assert (folder / "node.key").read_bytes() != key and load(folder).lifetime.stage(0) == 0
        assert (folder / "ca.crt").read_bytes().count(b"BEGIN CERTIFICATE") == 1


def test_another_authority_takes_over_with_both_in_the_bundle(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    tls("create-ca", "nord", "--ca", "tls/new-ca")
    folder = here / "tls" / "ps-ps-1"
    tls("renew", str(folder), "--ca", "tls/new-ca")
    tls("renew", str(folder), "--ca", "tls/new-ca")
    assert (folder / "ca.crt").read_bytes().count(b"BEGIN CERTIFICATE") == 2
    assert load(folder).identity.node == "ps-1"


def test_without_cryptography_the_message_says_what_to_install(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "cryptography" else found(name)
    )
    for command in (["create-ca", "nord"], ["create", "ps", "a"], ["create-operator", "a"]):
        assert "pip install 'adamctl[tls]'" in refused(*command)


def test_a_folder_can_be_checked_without_cryptography(here: Path) -> None:
    tls("create-ca", "nord")
    tls("create", "ps", "ps-1")
    program = (
        "import sys; sys.modules['cryptography'] = None; from adamctl.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "tls", "check", "tls/ps-ps-1"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0 and "can be used until" in done.stdout, done.stderr
