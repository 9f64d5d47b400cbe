"""Who may speak to etcd, and over what: users and certificates."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from adamctl.errors import ConfigurationError, UnreachableError
from adamctl.roles.controller.etcd import gateway as etcd_gateway
from adamctl.roles.controller.etcd.client import EtcdClient
from adamctl.roles.controller.etcd.gateway import Gateway, encoded
from adamctl.roles.controller.etcd.url import parse_etcd_url
from adamctl.wire.messages import ConfigChanges
from tests.net.tls.certificates import Authority, place
from tests.roles.controller.conformance import put
from tests.roles.controller.etcd_server import ENOUGH, EtcdCluster, etcd_cluster


def test_an_answer_that_is_not_text_is_not_etcds() -> None:
    with pytest.raises(UnreachableError, match="not an answer of etcd"):
        etcd_gateway._decode(b'{"header": {"revision": "\xff"}}')


async def users_only(cluster: EtcdCluster) -> None:
    """Makes the user `root` with the password `right`, and lets nobody else in; one who may read and write our keys."""
    client = EtcdClient(cluster.url)
    for path, message in (
        ("auth/user/add", {"name": "root", "password": "right"}),
        ("auth/role/add", {"name": "root"}),
        ("auth/user/grant", {"user": "root", "role": "root"}),
        ("auth/user/add", {"name": "training", "password": "enough"}),
        ("auth/role/add", {"name": "ours"}),
        ("auth/user/grant", {"user": "training", "role": "ours"}),
        (
            "auth/role/grant",
            {
                "name": "ours",
                "perm": {"permType": "READWRITE", "key": encoded("/adamctl"), "range_end": encoded("/adamctm")},
            },
        ),
        ("auth/enable", {}),
    ):
        await client._gateway.call(path, message, 10.0)
    await client.close()


async def test_users_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with etcd_cluster(tmp_path, flags=(*ENOUGH, "--auth-token-ttl=1")) as cluster:
        await users_only(cluster)
        stranger = EtcdClient(cluster.url)
        with pytest.raises(ConfigurationError, match="ADAMCTL_ETCD_USER"):
            await stranger.read("/")
        await stranger.close()
        monkeypatch.setenv("ADAMCTL_ETCD_USER", "training")
        monkeypatch.setenv("ADAMCTL_ETCD_PASSWORD", "wrong")
        wrong = EtcdClient(cluster.url)
        with pytest.raises(ConfigurationError, match="ADAMCTL_ETCD_PASSWORD") as caught:
            await wrong.read("/")
        assert "wrong" not in str(caught.value).partition("ADAMCTL")[2]
        await wrong.close()
        monkeypatch.setenv("ADAMCTL_ETCD_PASSWORD", "enough")
        client = EtcdClient(cluster.url)
        revision = await put(client, a=b"1")
        watching = asyncio.create_task(client.watch("/t/", revision, 30.0))
        await asyncio.sleep(2.5)  # etcd forgets who logged in
        await put(client, b=b"2")
        assert [entry.key for entry in (await watching).entries] == ["/t/b"]
        await client.close()
        elsewhere = EtcdClient(f"{cluster.url}/other")
        with pytest.raises(ConfigurationError, match=r"may not .*'/other'"):
            await elsewhere.read("/")
        await elsewhere.close()


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl on PATH to make a certificate with")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=etcd"
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    command = [*make.split(), *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return certificate, key


async def test_certificates_are_checked(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with etcd_cluster(tmp_path / "etcd", certificate=certificate[0], key=certificate[1]) as cluster:
        strict = EtcdClient(cluster.url)
        with pytest.raises(ConfigurationError, match="TLS"):
            await strict.read("/")
        await strict.close()
        monkeypatch.setenv("ADAMCTL_ETCD_CA", str(certificate[0]))
        monkeypatch.setenv("ADAMCTL_ETCD_CERT", str(certificate[0]))
        monkeypatch.setenv("ADAMCTL_ETCD_KEY", str(certificate[1]))
        client = EtcdClient(cluster.url)
        await client.compare_and_set(ConfigChanges({"/t/a": 0}, {"/t/a": b"1"}))
        assert len((await client.read("/t/"))[1]) == 1
        await client.close()
        certificate[1].chmod(0o640)
        with pytest.raises(ConfigurationError, match=r"other users may read it \(mode 0640\)"):
            await EtcdClient(cluster.url).read("/")
        certificate[1].chmod(0o600)
        monkeypatch.setenv("ADAMCTL_ETCD_CA", str(tmp_path / "none.pem"))
        with pytest.raises(ConfigurationError, match="cannot use the certificates"):
            await EtcdClient(cluster.url).read("/")


async def test_a_server_of_another_kind_is_told_as_such() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nnope\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = EtcdClient(f"etcd://127.0.0.1:{server.sockets[0].getsockname()[1]}", deadline_s=0.5)
    with pytest.raises(UnreachableError, match="answered 404: nope; is it an etcd server"):
        await client.read("/")
    await client.close()
    server.close()
    await server.wait_closed()


async def test_a_renewed_certificate_is_used_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New connections load it; while it cannot be used, the old one stays, and the log says why, once."""
    folder = Authority(tmp_path).write("operator", "anna")
    environment = {"ADAMCTL_ETCD_CERT": str(folder / "node.crt"), "ADAMCTL_ETCD_KEY": str(folder / "node.key")}
    url = parse_etcd_url("etcds://a:1", environment)
    gateway = Gateway(url, attempt_s=1.0, log=logging.getLogger("adamctl.test"))
    gateway._opened()
    loaded: list[object] = []
    assert gateway._context is not None
    real = gateway._context.load_cert_chain

    def load(*files: object) -> None:
        real(*files)  # type: ignore[arg-type]
        loaded.append(files)

    monkeypatch.setattr(gateway, "_context", SimpleNamespace(load_cert_chain=load))
    gateway._opened()
    assert loaded == []
    Authority(tmp_path).write("operator", "anna")
    gateway._opened()
    gateway._opened()
    assert loaded == [(url.certificate, url.key)]
    place(folder / "node.crt", b"half")
    gateway._opened()
    gateway._opened()
    assert len(loaded) == 1 and caplog.text.count("stays as it was") == 1
    (folder / "node.key").chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"other users may read it \(mode 0644\)"):
        gateway._tls()
    await gateway.close()


def test_tls_checks_who_answers() -> None:
    gateway = Gateway(parse_etcd_url("etcds://a:1", {}), attempt_s=1.0, log=None)  # type: ignore[arg-type]
    context = gateway._tls()
    assert context.verify_mode == ssl.CERT_REQUIRED and context.check_hostname
