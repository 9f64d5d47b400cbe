"""Makes keys, certificates and authorities (ECDSA over P-256, X.509); only this needs the package `cryptography`."""

from __future__ import annotations

import importlib.util
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from adamctl.config.names import NAME_EXPECTED, is_name
from adamctl.errors import ConfigurationError
from adamctl.net.tls.identity import SCHEME, Identity, parse_identity

if TYPE_CHECKING:
    from cryptography import x509

AUTHORITY_DAYS: Final = 3653
NODE_DAYS: Final = 90
OPERATOR_DAYS: Final = 30
BACKDATED_S: Final = 300
"""Certificates are valid from this long before they are made, because clocks differ."""
KEY_SEED_BYTES: Final = 48
"""128 bits more than a key has, so that all keys are equally likely (FIPS 186-5, A.2.1)."""
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class Pair(NamedTuple):
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


class Described(NamedTuple):
    """What a certificate says. `uri` is of its identity, or `adam://CLUSTER` of an authority's cluster."""

    uri: str
    issuer: str
    is_authority: bool
    not_before_s: float
    not_after_s: float
    fingerprint: str


def need_cryptography(who: str = "making certificates", otherwise: str = "to use them needs nothing") -> None:
    """Raises ConfigurationError: the package that makes certificates is not installed.

    `who` needs it, and what to do `otherwise`, for the message.
    """
    if importlib.util.find_spec("cryptography") is None:
        raise ConfigurationError(f"{who} needs the package cryptography: pip install 'adamctl[tls]'; {otherwise}")


def new_authority(
    cluster: str, *, now: datetime | None = None, lifetime: timedelta | None = None, key_seed: bytes = b""
) -> Pair:
    """Returns a new authority for a cluster's certificates.

    Args:
        key_seed: KEY_SEED_BYTES secret bytes of which its key is made, so that others who have them make the same one;
            default: a key by chance.

    Raises:
        ConfigurationError: no cluster can have this name, or `cryptography` is not installed.
    """
    need_cryptography()
    from cryptography import x509

    if not is_name(cluster):
        raise ConfigurationError(f"expected a cluster's name of {NAME_EXPECTED}; found {cluster!a}")
    key = _derived_key(key_seed) if key_seed else _new_key()
    name = _name(f"adamctl cluster {cluster}")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    builder = _begun(name, name, key.public_key(), now, lifetime or timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = _with_uri(builder, f"{SCHEME}{cluster}", key.public_key(), key.public_key())
    return Pair(_pem(_signed(builder, key)), _key_pem(key))


def issue(
    authority: Pair,
    identity: Identity,
    *,
    now: datetime | None = None,
    lifetime: timedelta | None = None,
    request: bytes = b"",
) -> Pair:
    """Returns a certificate for an identity, with a new key, or for the key in a request to sign (PEM), without it.

    Args:
        lifetime: default: 30 days for an operator, 90 for others; never beyond the authority's own.

    Raises:
        ConfigurationError: the authority is another cluster's or has expired, its key does not fit or cannot be read,
            the request is not signed with its own key, or its key is no P-256.
    """
    need_cryptography()
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer = _certificates(authority.certificate)[0]
    signer = _private_key(authority.key)
    if signer.public_key() != issuer.public_key():
        raise ConfigurationError("the authority's key does not fit its certificate; expected ca.crt and ca.key of one")
    _check_cluster(issuer, identity)
    days = OPERATOR_DAYS if identity.role == "operator" else NODE_DAYS
    key = None if request else _new_key()
    public: Any = _requested_key(request) if key is None else key.public_key()
    builder = _begun(_name(f"{identity.role} {identity.node}"), issuer.subject, public, now,
                     lifetime or timedelta(days=days), issuer.not_valid_after_utc)  # fmt: skip
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(digital_signature=True), critical=True)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, critical=False)
    builder = _with_uri(builder, str(identity), public, signer.public_key())
    return Pair(_pem(_signed(builder, signer)), b"" if key is None else _key_pem(key))


def new_request(identity: Identity) -> Pair:
    """Returns a request to sign for an identity, in place of a certificate, and the key that it is for."""
    need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    key = _new_key()
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(identity))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(f"{identity.role} {identity.node}"))
    request = builder.add_extension(names, critical=False).sign(key, hashes.SHA256())
    return Pair(_pem(request), _key_pem(key))


def requested_identity(request: bytes) -> Identity:
    """Returns whom a request to sign (PEM) is for. Raises ConfigurationError: it cannot be read, or names nobody."""
    from cryptography import x509

    _requested_key(request)
    try:
        names = x509.load_pem_x509_csr(request).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ConfigurationError("expected a request that names a URI adam://CLUSTER/ROLE/NODE; found none") from None
    found = [uri for uri in names.get_values_for_type(x509.UniformResourceIdentifier) if uri.startswith(SCHEME)]
    if len(found) != 1:
        raise ConfigurationError(f"expected a request with one URI adam://CLUSTER/ROLE/NODE; found {len(found)}")
    return parse_identity(found[0])


def describe(certificates: bytes) -> list[Described]:
    """Returns what each certificate in a PEM file says. Raises ConfigurationError: it cannot be read."""
    need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    found = []
    for one in _certificates(certificates):
        try:
            names = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        except x509.ExtensionNotFound:
            uris = []
        try:
            is_authority = bool(one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
        except x509.ExtensionNotFound:
            is_authority = False
        uri = next((uri for uri in uris if uri.startswith(SCHEME)), "")
        since, until = one.not_valid_before_utc.timestamp(), one.not_valid_after_utc.timestamp()
        mark = one.fingerprint(hashes.SHA256()).hex(":")
        found.append(Described(uri, one.issuer.rfc4514_string(), is_authority, since, until, mark))
    return found


def _certificates(pem: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise ConfigurationError("expected certificates in PEM; found none that can be read") from error


def _private_key(pem: bytes) -> Any:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigurationError(
            "the authority's key, ca.key, cannot be read; expected one in PEM without a password, as adamctl tls "
            "create-ca makes it"
        ) from error


def _check_cluster(issuer: x509.Certificate, identity: Identity) -> None:
    cluster = describe(_pem(issuer))[0].uri.removeprefix(SCHEME)
    if cluster and cluster != identity.cluster:
        raise ConfigurationError(f"expected an identity in the authority's cluster {cluster}; found {identity}")


def _requested_key(request: bytes) -> Any:
    need_cryptography()
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        found = x509.load_pem_x509_csr(request)
    except ValueError as error:
        raise ConfigurationError("expected a request to sign in PEM; found none that can be read") from error
    key = found.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigurationError("expected a request for an ECDSA key over P-256; found another kind of key")
    if not found.is_signature_valid:
        raise ConfigurationError("the request is not signed with the key that it names; make it anew")
    return key


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _derived_key(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    assert len(seed) == KEY_SEED_BYTES
    return ec.derive_private_key(int.from_bytes(seed) % (_P256_ORDER - 1) + 1, ec.SECP256R1())


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(**true: bool) -> x509.KeyUsage:
    from cryptography import x509

    names = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
             "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")  # fmt: skip
    return x509.KeyUsage(**{name: true.get(name, False) for name in names})


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    public: Any,
    now: datetime | None,
    lifetime: timedelta,
    until_max: datetime | None = None,
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = now or datetime.now(UTC)
    until = now + lifetime if until_max is None else min(now + lifetime, until_max)
    begin = now - timedelta(seconds=BACKDATED_S)
    if until <= begin:
        raise ConfigurationError(f"the authority has expired, at {until:%Y-%m-%d %H:%M} UTC; adamctl tls create-ca")
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(until)


def _with_uri(builder: x509.CertificateBuilder, uri: str, public: Any, signer: Any) -> x509.CertificateBuilder:
    from cryptography import x509

    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer)
    builder = builder.add_extension(names, critical=False).add_extension(by, critical=False)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)


def _signed(builder: x509.CertificateBuilder, key: Any) -> x509.Certificate:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    made: bytes = thing.public_bytes(Encoding.PEM)
    return made


def _key_pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return made
