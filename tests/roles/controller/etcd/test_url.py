"""What `etcd://...` may say."""

from __future__ import annotations

import pytest

from adamctl.errors import ConfigurationError
from adamctl.roles.configuration import configuration_addresses, configuration_places
from adamctl.roles.controller.etcd.url import is_etcd, parse_etcd_url
from adamctl.roles.process import outward_host


def test_members_prefix_and_times() -> None:
    url = parse_etcd_url("etcd://a:2379,[::1]:99,b/site/one?lost_after=9", {})
    assert url.members == ("http://a:2379", "http://[::1]:99", "http://b:2379")
    assert url.places == ("tcp://a:2379", "tcp://[::1]:99", "tcp://b:2379")
    assert (url.root, url.lost_after_s, url.user) == ("/site/one", 9, "")
    plain = parse_etcd_url("etcd://a:1/", {})
    assert (plain.root, plain.lost_after_s) == ("/adamctl", 5)


def test_secrets_and_certificates_come_from_the_environment() -> None:
    environment = {"ADAMCTL_ETCD_USER": "u", "ADAMCTL_ETCD_PASSWORD": "p", "ADAMCTL_ETCD_CA": "ca.pem"}
    url = parse_etcd_url("etcds://a:2379", environment)
    assert url.members == ("https://a:2379",)
    assert (url.user, url.password, url.authority, url.certificate) == ("u", "p", "ca.pem", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://a:2379", "expected etcd://host:port"),
        ("etcd://", "expected etcd://host:port"),
        ("etcd://a:x", "expected tcp://host:port"),
        ("etcd://[secret:1", "whose host cannot be parsed"),
        ("etcd://a:1/has space", "a prefix is at most"),
        ("etcd://a:1?lost_after=1", "2 to 3600 whole seconds"),
        ("etcd://a:1?lost_after=2.5", "2 to 3600 whole seconds"),
        ("etcd://a:1?other=1", "only"),
        ("etcd://user:secret@a:1", "ADAMCTL_ETCD_PASSWORD"),
    ],
)
def test_what_is_wrong_is_said(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        parse_etcd_url(text, {})
    assert "secret" not in str(caught.value)


def test_addresses_are_controllers_or_one_etcd() -> None:
    assert is_etcd("etcd://a:1") and is_etcd("etcds://a") and not is_etcd("a:1") and not is_etcd("tcp://etcd:1")
    assert configuration_addresses(["a:1", "tcp://b:2"]) == ("tcp://a:1", "tcp://b:2")
    assert configuration_addresses(["etcd://a:1,b:2"]) == ("etcd://a:1,b:2",)
    assert configuration_places(["etcd://a:1,b:2"]) == ("tcp://a:1", "tcp://b:2")
    assert configuration_places(["tcp://c:3", "unix:///s"]) == ("tcp://c:3", "unix:///s")
    assert outward_host(("etcd://127.0.0.1:1,127.0.0.1:2",)) == "127.0.0.1"
    with pytest.raises(ConfigurationError, match="one etcd cluster and nothing else"):
        configuration_addresses(["etcd://a:1", "b:2"])
