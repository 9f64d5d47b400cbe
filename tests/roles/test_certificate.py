"""A role's certificate while it runs: what the log says as its end comes near, and what STATUS says."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.tls.credentials import Credentials
from adamctl.net.tls.identity import Identity
from adamctl.roles.certificate import CertificateWatch
from adamctl.roles.process import CommonOptions, node_name
from tests.net.tls.certificates import Authority

DAY_S = 86400.0


class Clock:
    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


def watched(folder: Path, days: float) -> tuple[CertificateWatch, Clock, Authority]:
    authority, clock = Authority(folder), Clock()
    credentials = Credentials(authority.write("ps", "ps-0", lifetime_s=days * DAY_S), clock)
    return CertificateWatch(credentials, logging.getLogger("adamctl.test")), clock, authority


def test_each_stage_of_the_end_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch, clock, _ = watched(tmp_path, 90)
    begin_s, told = clock.now_s, []
    for hour in range(91 * 24):
        clock.now_s = begin_s + hour * 3600
        caplog.clear()
        watch.look()
        told += [(hour // 24, record.getMessage()) for record in caplog.records]
    assert [day for day, _ in told] == [60, 83, 89, 90]
    assert "expires in 30 days" in told[0][1] and "expires in 24 hours" in told[2][1] and "has expired" in told[3][1]
    assert all("adam://nord/ps/ps-0" in text and "adamctl tls renew" in text for _, text in told)


def test_a_renewed_certificate_is_quiet_and_tells_its_own_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watch, clock, authority = watched(tmp_path, 90)
    clock.now_s += 85 * DAY_S
    watch.look()
    assert watch.status()["warning"] == "expires in 5 days"
    authority.write("ps", "ps-0", lifetime_s=900 * DAY_S)
    clock.now_s += 2
    caplog.clear()
    watch.look()
    status = watch.status()
    assert status["warning"] == "" and status["seconds_left"] > 800 * DAY_S and not caplog.records
    assert status["identity"] == "adam://nord/ps/ps-0" and status["not_after_s"] > clock.now_s


def test_a_shorter_certificate_in_the_place_of_a_longer_one_tells_its_own_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch, clock, authority = watched(tmp_path, 90)
    watch.look()
    authority.write("ps", "ps-0", lifetime_s=30 * DAY_S)
    clock.now_s += 2
    watch.look()
    clock.now_s += 25 * DAY_S
    watch.look()
    assert "expires in 5 days" in caplog.text


def test_short_lives_are_looked_at_often(tmp_path: Path) -> None:
    assert watched(tmp_path, 90)[0].look() == 60.0
    assert watched(tmp_path, 0.003)[0].look() == pytest.approx(5.6, abs=0.1)


@pytest.mark.parametrize(
    ("certificate", "role", "given", "name"),
    [
        ("ps/ps-0", "ps", "", "ps-0"),
        ("ps/ps-0", "ps", "ps-0.a", "ps-0.a"),
        ("operator/anna", "coordinator", "", "anna.coordinator-"),
        ("host/h1", "host", "", "h1"),
        ("host/h1", "host", "h1.3", "h1.3"),
    ],
)
def test_a_node_is_called_as_its_certificate_says(certificate: str, role: str, given: str, name: str) -> None:
    identity = Identity("nord", *certificate.split("/"))
    assert node_name(role, CommonOptions(name=given), identity).startswith(name)


@pytest.mark.parametrize(
    ("certificate", "role", "given"),
    [
        ("ps/ps-0", "ps", "ps-1"),
        ("ps/ps-0", "worker", ""),
        ("operator/anna", "controller", ""),
        ("host/h", "worker", ""),
    ],
)
def test_a_certificate_for_somebody_else_is_refused_at_the_start(certificate: str, role: str, given: str) -> None:
    identity = Identity("nord", *certificate.split("/"))
    with pytest.raises(ConfigurationError, match=rf"{identity}: it allows .*adamctl tls create {role} "):
        node_name(role, CommonOptions(name=given), identity)
