"""The certificates of a run: each for one role and name, kept where its owner's commands find them."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError, HandshakeError
from adamctl.launch.live_runs import Noted
from adamctl.launch.run_certificates import (
    RunCertificates,
    front_transport,
    make_run_tls,
    run_transport,
    transport_for,
)
from adamctl.launch.run_token import kept_token
from adamctl.net.handshake import make_hello
from adamctl.net.stream import StreamTransport
from adamctl.net.tls.by_token import token_credentials
from adamctl.net.tls.credentials import Credentials, write_folder
from adamctl.net.transport import Request
from adamctl.wire.messages import HostCredentials, HostStart
from tests.net.tls.certificates import Authority

NAME = "digits/001"
TOKEN = "the run's token"


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "digits" / "001"
    folder.mkdir(parents=True)
    return folder


def handed(made: HostCredentials, folder: Path) -> Credentials:
    write_folder(folder, made.authorities, made.certificate, made.key)
    return Credentials(folder)


def test_each_role_has_a_certificate_for_its_own_role_and_name(run_folder: Path, tmp_path: Path) -> None:
    made = RunCertificates(NAME, run_folder)
    assert not (run_folder / "secrets").exists(), "an authority is in memory alone"
    there = handed(made.issued("ps", "ps-1"), tmp_path / "there").current.identity
    assert str(there) == "adam://digits_001/ps/ps-1"
    assert there.speaks_for("ps", "ps-1") and there.roles == {"ps"} and not there.speaks_for("ps", "ps-2")
    flag, place = made.beside("coordinator", "coordinator")
    assert flag == "--tls-dir" and str(Credentials(Path(place)).current.identity).endswith("/coordinator/coordinator")
    assert str(made.operator().current.identity) == "adam://digits_001/operator/front"
    assert Path(place).is_relative_to(run_folder / "secrets") and Path(place).is_absolute()
    for path in (run_folder / "secrets" / "tls").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
        assert path.is_dir() or path.name in ("ca.crt", "node.crt", "node.key")


def test_a_key_is_not_shown(run_folder: Path) -> None:
    made = RunCertificates(NAME, run_folder).issued("ps", "ps-1")
    for shown in (repr(made), str(made), repr(HostStart(1, "ps", "ps-1", (), credentials=made))):
        assert "PRIVATE" not in shown and "BEGIN" not in shown


async def test_roles_of_one_run_trust_each_other_and_no_other_run(run_folder: Path, tmp_path: Path) -> None:
    run, other = RunCertificates(NAME, run_folder), RunCertificates(NAME, run_folder)

    def handle(request: Request) -> None:
        raise AssertionError("nobody asks")

    server = await StreamTransport(tls=handed(run.issued("ps", "ps-1"), tmp_path / "ps")).serve(
        ["tcp://127.0.0.1:0"], make_hello("ps", "ps-1"), handle
    )
    worker = make_hello("worker", "worker-1")
    own = StreamTransport(tls=handed(run.issued("worker", "worker-1"), tmp_path / "own"))
    await (await own.connect(server.addresses[0], worker, deadline_s=10)).close()
    for name, hello in (("worker", make_hello("ps", "worker-1")), ("name", make_hello("worker", "worker-2"))):
        with pytest.raises(HandshakeError, match="its certificate does not allow"):
            await own.connect(server.addresses[0], hello, deadline_s=10)
        assert name
    by_token = token_credentials(TOKEN, "host", "host-1", tmp_path / "agent")
    for stranger in (handed(other.issued("worker", "worker-1"), tmp_path / "stranger"), by_token):
        with pytest.raises(HandshakeError, match="of another authority"):
            await StreamTransport(tls=stranger).connect(server.addresses[0], worker, deadline_s=10)
    await server.close()


def test_a_run_without_certificates_is_reached_without_whatever_the_environment_says(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_run_tls("network", NAME, run_folder, TOKEN, {}) is None
    monkeypatch.setenv("ADAMCTL_TLS", str(Authority(tmp_path / "authority").write("operator", "anna")))
    addresses, state = ("tcp://127.0.0.1:7",), tmp_path / "state"
    joined = Noted(tmp_path, state, controllers=addresses)  # by another run, with certificates that its user has given
    assert all(found.tls is not None for found in (run_transport(tmp_path), transport_for(addresses, state)))
    own = Noted(run_folder, state, controllers=addresses)
    with kept_token(run_folder, TOKEN):
        assert run_transport(run_folder).tls is None and front_transport(run_folder).tls is None
        assert transport_for(addresses, state).tls is None
    for note in (joined, own):
        note.remove()


def test_agents_know_the_front_by_the_token_or_by_the_users_certificate(run_folder: Path, tmp_path: Path) -> None:
    made = make_run_tls("token", NAME, run_folder, TOKEN, {})
    assert made is not None and str(made.agents.current.identity) == "adam://hosts/operator/front"
    found = front_transport(run_folder).tls
    assert found is not None and found.folder == run_folder / "secrets" / "tls" / "agents"
    anna = Authority(tmp_path / "authority").write("operator", "anna")
    made = make_run_tls("certificates", NAME, tmp_path / "other", TOKEN, {"ADAMCTL_TLS": str(anna)})
    assert made is not None and str(made.agents.current.identity) == "adam://nord/operator/anna"
    found = front_transport(tmp_path / "other").tls
    assert found is not None and found.current.identity == made.agents.current.identity
    host = Authority(tmp_path / "authority").write("host", "far")
    with pytest.raises(ConfigurationError, match=r"expected the certificate of an operator.*create-operator"):
        make_run_tls("certificates", NAME, run_folder, TOKEN, {"ADAMCTL_TLS": str(host)})
    with pytest.raises(ConfigurationError, match="No such file"):
        make_run_tls("certificates", NAME, run_folder, TOKEN, {"ADAMCTL_TLS": str(tmp_path / "nowhere")})


def test_commands_find_the_certificate_of_a_live_run_and_nothing_once_it_is_over(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ADAMCTL_TLS", raising=False)
    note = Noted(run_folder, tmp_path / "state", controllers=("tcp://127.0.0.1:7",))
    with kept_token(run_folder, TOKEN):
        RunCertificates(NAME, run_folder).operator()
        for found in (run_transport(run_folder), transport_for(("tcp://127.0.0.1:7",), tmp_path / "state")):
            assert found.tls is not None and str(found.tls.current.identity) == "adam://digits_001/operator/front"
        assert transport_for(("tcp://127.0.0.1:8",), tmp_path / "state").tls is None
    assert transport_for(("tcp://127.0.0.1:7",), tmp_path / "state").tls is None
    assert list(run_folder.iterdir()) == []
    note.remove()
