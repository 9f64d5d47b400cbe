"""How a command is given the token: in a file or by its environment, never on its command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from adamctl.cli.main import application
from adamctl.errors import ConfigurationError
from adamctl.net.token_file import environment_token, read_token_file
from tests.cli.test_errors import adamctl

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.toml"
COMMANDS = [
    ["controller", "start"],
    ["ps", "start"],
    ["worker", "start"],
    ["status"],
    ["top"],
    ["shards"],
    ["drain", "ps-1"],
    ["run", "stop"],
    ["train", "exp.toml"],
]


def kept(folder: Path, content: bytes, mode: int = 0o600) -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_token_on_the_command_line_is_refused_with_advice(command: list[str]) -> None:
    caught = CliRunner().invoke(application, [*command, "--token", "very-secret"]).exception
    assert isinstance(caught, ConfigurationError)
    assert "--token-file FILE, or set ADAMCTL_TOKEN" in str(caught) and "very-secret" not in str(caught)
    assert "--token " not in CliRunner().invoke(application, [*command, "--help"]).output


def test_a_file_gives_the_token(tmp_path: Path) -> None:
    path = kept(tmp_path, b" abc \n")
    assert read_token_file(path, "--token-file") == "abc"
    assert environment_token({"ADAMCTL_TOKEN_FILE": str(path), "ADAMCTL_TOKEN": "other"}) == "abc"
    assert environment_token({"ADAMCTL_TOKEN": "other"}) == "other"
    assert environment_token({}) == ""


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"abc", 0o644, "chmod 600"),
        (b"", 0o600, "expected one line"),
        (b"a\nb", 0o600, "expected one line"),
        (b"\xff\xfe", 0o600, "expected one line"),
        (b"a" * 5000, 0o600, "expected one line"),
    ],
)
def test_a_file_that_will_not_do(tmp_path: Path, content: bytes, mode: int, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as caught:
        read_token_file(kept(tmp_path, content, mode), "--token-file")
    assert "abc" not in str(caught.value).replace(str(tmp_path), "")
    with pytest.raises(ConfigurationError, match="No such file"):
        read_token_file(tmp_path / "none", "--token-file")


@pytest.mark.parametrize(
    "flags",
    [
        ("controller", "start", "--bind", "0.0.0.0", "--port", "0", "--dir", "c"),
        ("ps", "start", "--listen", "0.0.0.0:0"),
        ("ps", "start", "--admin-listen", "0.0.0.0:0"),
        ("ps", "start", "--replication-listen", "0.0.0.0:0"),
        ("data", "start", "--bind", "0.0.0.0"),
        ("worker", "start", "--bind", "::"),
    ],
    ids=" ".join,
)
def test_no_role_listens_beyond_loopback_without_tls(flags: tuple[str, ...], tmp_path: Path) -> None:
    around = {} if flags[0] == "controller" else {"ADAMCTL_CONTROLLER": "127.0.0.1:1"}
    result = adamctl(*flags, cwd=tmp_path, ADAMCTL_TOKEN="secret", **around)
    assert result.returncode == 2, result.stderr
    assert "without TLS" in result.stderr and "--tls-dir DIR" in result.stderr and "--insecure" in result.stderr


def test_on_a_trusted_network_a_token_is_needed(tmp_path: Path) -> None:
    flags = ("ps", "start", "--replication-listen", "0.0.0.0:0", "--insecure")
    result = adamctl(*flags, cwd=tmp_path, ADAMCTL_CONTROLLER="127.0.0.1:1")
    assert result.returncode == 2, result.stderr
    assert "without a token" in result.stderr and "--token-file FILE or set ADAMCTL_TOKEN" in result.stderr


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--tls"], "--tls: expected with --hosts"),
        (["--hosts", "2", "--tls", "--insecure"], "--insecure says that there is no TLS"),
        (["--hosts", "2", "--tls-dir", "tls", "--insecure"], "--insecure says that there is no TLS"),
        (["--hosts", "2", "--on", "local", "--tls-dir", "tls"], "that --on local starts have no certificates"),
        (["--tls-dir", "tls"], "a run that starts its own roles on this machine"),
        (["--hosts", "1", "--bind", "127.0.0.1", "--tls-dir", "tls"], "ca.crt: No such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_said_of_tls_must_fit_the_run(
    flags: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAMCTL_STATE", str(tmp_path / "state"))
    caught = CliRunner().invoke(application, ["train", str(DIGITS), *flags]).exception
    assert isinstance(caught, ConfigurationError) and why in str(caught)


def test_an_agent_needs_the_token_to_speak_tls(tmp_path: Path) -> None:
    flags = ("host", "start", "--front", "192.0.2.1:7", "--root", str(tmp_path / "far"))
    result = adamctl(*flags, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "expected the run's token, of which its certificate is made: give --token-file FILE" in result.stderr
