"""Whom a certificate names, what its holder may be, and what is said to those who are refused."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError
from adamctl.net.tls.identity import (
    CLAIMS,
    Identity,
    certificate_identity,
    command_for,
    other_cluster,
    parse_identity,
    wrong_claim,
    wrong_peer,
)
from adamctl.wire.permissions import KNOWN_ROLES

SERVER = Identity("nord", "ps", "ps-0")
WORKER = Identity("nord", "worker", "w-1")
OPERATOR = Identity("nord", "operator", "anna")


def test_an_identity_is_a_uri() -> None:
    assert str(SERVER) == "adam://nord/ps/ps-0"
    assert parse_identity("adam://nord/ps/ps-0") == SERVER


@pytest.mark.parametrize(
    "uri",
    [
        "", "adam://", "adam://nord", "adam://nord/ps", "adam://nord/ps/", "adam://nord/ps/a/b", "adam://nord//a",
        "adam://nord/ps/a b", "adam://nord/ps/\x1b[2J", "http://nord/ps/a", "ADAM://nord/ps/a", "adam://nord/ps/a\n",
        "adam://nord/ps/" + "x" * 129, "adam://nord/ps/ps-0.part", "xadam://nord/ps/a",
    ],
)  # fmt: skip
def test_anything_else_is_none(uri: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_identity(uri)
    assert str(caught.value).isprintable()


def test_a_certificate_names_exactly_one() -> None:
    other = ("URI", "https://example.org")
    names = (("DNS", "adam://nord/ps/dns"), other, ("URI", "adam://nord/ps/ps-0"))
    assert certificate_identity({"subjectAltName": names}) == SERVER
    for found in ((), (other,), (*names, ("URI", "adam://nord/operator/anna"))):
        with pytest.raises(ConfigurationError, match="one URI adam://CLUSTER/ROLE/NODE"):
            certificate_identity({"subjectAltName": found})
    with pytest.raises(ConfigurationError, match="none"):
        certificate_identity({})


@pytest.mark.parametrize("role", sorted({*KNOWN_ROLES, *CLAIMS, "surveyor"}))
def test_a_certificate_allows_its_own_role_and_what_the_table_lists(role: str) -> None:
    identity = Identity("nord", role, "n")
    for claimed in sorted({*KNOWN_ROLES, *CLAIMS, "surveyor"}):
        allowed = claimed in {
            "operator": {"operator", "front", "bench", "metrics", "coordinator", "client"},
        }.get(role, {role})
        assert identity.speaks_for(claimed, "n") is allowed, claimed
        assert bool(wrong_claim(SERVER, identity, claimed, "n")) is not allowed


def test_nobody_but_a_controllers_certificate_makes_a_controller() -> None:
    holders = [role for role in {*KNOWN_ROLES, *CLAIMS} if Identity("nord", role, "n").speaks_for("controller", "n")]
    assert holders == ["controller"]


def test_a_node_speaks_for_itself_and_its_parts() -> None:
    assert WORKER.speaks_for("worker", "w-1") and WORKER.speaks_for("worker", "w-1.part-2")
    assert OPERATOR.part("front-77") == "anna.front-77" and OPERATOR.speaks_for("front", "anna.front-77")
    for node in ("w-2", "w-1x", "w-1-part", "", ".w-1", "W-1", "w-10.part"):
        assert not WORKER.speaks_for("worker", node)


def test_refusals_name_both_sides_the_reason_and_the_command() -> None:
    text = wrong_claim(SERVER, WORKER, "ps", "ps-1.part")
    assert all(part in text for part in (str(SERVER), str(WORKER), "ps ps-1.part", "adamctl tls create ps ps-1"))
    assert "allows worker as w-1 or w-1.PART" in text
    text = other_cluster(SERVER, Identity("sued", "worker", "w-1"), "from 10.0.0.3")
    assert all(part in text for part in (str(SERVER), "adam://sued/worker/w-1", "10.0.0.3", "different clusters"))
    assert "adamctl tls create ps ps-0" in text
    assert other_cluster(SERVER, WORKER, "") == ""


def test_a_connection_reaches_whom_it_was_made_to() -> None:
    said = ("worker", "w-1")
    for role, node in (("", ""), ("worker", ""), ("", "w-1"), ("worker", "w-1")):
        assert wrong_peer(SERVER, WORKER, said, role, node) == ""
    for role, node in (("controller", ""), ("", "w-2"), ("ps", "w-1"), ("worker", "w-2")):
        text = wrong_peer(SERVER, WORKER, said, role, node)
        assert str(SERVER) in text and str(WORKER) in text and "adamctl tls create" in text


def test_a_front_needs_an_operators_certificate() -> None:
    assert command_for("front", "anna.front-1") == "adamctl tls create-operator NAME"
