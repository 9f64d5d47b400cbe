"""Certificates as they are made: their extensions, lifetimes, and what an authority refuses to sign."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from adamctl.errors import ConfigurationError
from adamctl.net.tls.authority import describe, issue, new_authority, new_request, requested_identity
from adamctl.net.tls.identity import Identity

NODE = Identity("nord", "ps", "ps-0")


def days(described: object) -> float:
    found = described
    return (found.not_after_s - found.not_before_s) / 86400  # type: ignore[attr-defined]


def test_authorities_live_ten_years_nodes_90_days_and_operators_30() -> None:
    authority = new_authority("nord")
    assert days(describe(authority.certificate)[0]) == pytest.approx(3653, abs=0.1)
    assert days(describe(issue(authority, NODE).certificate)[0]) == pytest.approx(90, abs=0.1)
    operator = issue(authority, Identity("nord", "operator", "anna"))
    assert days(describe(operator.certificate)[0]) == pytest.approx(30, abs=0.1)


def test_no_certificate_outlives_its_authority() -> None:
    authority = new_authority("nord", lifetime=timedelta(days=5))
    assert days(describe(issue(authority, NODE).certificate)[0]) <= 5.01
    old = new_authority("nord", now=datetime.now(UTC) - timedelta(days=30), lifetime=timedelta(days=5))
    with pytest.raises(ConfigurationError, match=r"the authority has expired.*create-ca"):
        issue(old, NODE)


def test_a_certificate_is_for_a_p_256_key_and_can_issue_none() -> None:
    made = x509.load_pem_x509_certificate(issue(new_authority("nord"), NODE).certificate)
    key = made.public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == "secp256r1"
    assert not made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not made.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [name.value for name in names] == ["adam://nord/ps/ps-0"]  # and no address


def test_an_authority_signs_for_its_own_cluster_only() -> None:
    with pytest.raises(ConfigurationError, match="cluster nord; found adam://sued/ps/a"):
        issue(new_authority("nord"), Identity("sued", "ps", "a"))
    with pytest.raises(ConfigurationError, match="cluster's name"):
        new_authority("two words")


def test_the_key_of_another_authority_is_refused() -> None:
    mixed = new_authority("nord")._replace(key=new_authority("nord").key)
    with pytest.raises(ConfigurationError, match="does not fit"):
        issue(mixed, NODE)


def test_a_damaged_key_of_an_authority_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"ca\.key, cannot be read"):
        issue(new_authority("nord")._replace(key=b"nonsense"), NODE)


def test_a_request_is_signed_without_its_key() -> None:
    request = new_request(NODE)
    assert requested_identity(request.certificate) == NODE
    made = issue(new_authority("nord"), NODE, request=request.certificate)
    assert made.key == b"" and describe(made.certificate)[0].uri == str(NODE)


def test_requests_that_are_not_what_they_seem_are_refused() -> None:
    weak = rsa.generate_private_key(65537, 2048)
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.sign(weak, hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(ConfigurationError, match="ECDSA key over P-256"):
        issue(new_authority("nord"), NODE, request=request)
    unnamed = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM)
    with pytest.raises(ConfigurationError, match="names a URI"):
        requested_identity(unnamed)
    with pytest.raises(ConfigurationError, match="request to sign in PEM"):
        requested_identity(b"nonsense")


def test_what_a_certificate_says() -> None:
    authority = new_authority("nord")
    first, second = describe(issue(authority, NODE).certificate + authority.certificate)
    assert (first.uri, first.is_authority, first.issuer) == (str(NODE), False, "CN=adamctl cluster nord")
    assert (second.uri, second.is_authority) == ("adam://nord", True)
    assert len(first.fingerprint.split(":")) == 32
    with pytest.raises(ConfigurationError, match="certificates in PEM"):
        describe(b"nonsense")
