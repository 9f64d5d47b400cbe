"""The handshake without a network: both ends joined, and what somebody between or beside them can do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from adamctl.errors import HandshakeError, ProofError, RemoteError, UnreachableError, WrongClusterError
from adamctl.net.handshake import NONCE_BYTES, ClientHandshake, ServerHandshake, make_hello, refusal
from adamctl.wire.constants import ErrorCode
from adamctl.wire.messages import ErrorReply, Hello, HelloReply, ProveReply, ProveRequest

TOKEN = "only for the two of us"
CREDIT_BYTES = 1000


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def client(token: str = TOKEN, number: int = 1, *, trusted: bool = False, **options: Any) -> ClientHandshake:
    return ClientHandshake(make_hello("worker", "w", 7, token, **options), nonce(number), trusted=trusted)


def server(token: str = TOKEN, number: int = 2, *, trusted: bool = False, **options: Any) -> ServerHandshake:
    return ServerHandshake(make_hello("ps", "ps-0", 8, token, **options), nonce(number), trusted=trusted)


def join(near: ClientHandshake, far: ServerHandshake) -> list[Any]:
    """Carries everything over; returns what went over the wire."""
    reply = far.greeted(near.hello, CREDIT_BYTES)
    said: list[Any] = [near.hello, reply]
    proof = near.replied(reply, "there")
    if proof is not None:
        assert not far.done
        said += [proof, far.proved(proof)]
        near.proved(said[-1], "there")
    assert far.done
    return said


def refused(near: ClientHandshake, far: ServerHandshake) -> str:
    """Returns why one of them refuses, which names no token."""
    with pytest.raises((RemoteError, HandshakeError)) as caught:
        join(near, far)
    assert not far.done
    assert TOKEN not in str(caught.value)
    return str(caught.value)


def test_who_has_the_token_is_let_in_and_the_token_is_not_sent() -> None:
    said = join(client(), server())
    assert [type(message) for message in said] == [Hello, HelloReply, ProveRequest, ProveReply]
    assert all(TOKEN.encode() not in msgspec.msgpack.encode(message) for message in said)
    assert TOKEN not in repr(make_hello("worker", "w", token=TOKEN))


def test_nobody_needs_to_prove_what_nobody_has() -> None:
    assert len(join(client(""), server(""))) == 2


def test_another_token_is_refused_by_either_side() -> None:
    assert "give every process of a cluster the same" in refused(client("other"), server())
    honest, liar, accomplice = client(), server("other"), client("other")
    answer = liar.greeted(honest.hello, CREDIT_BYTES)
    assert honest.replied(answer, "there") is not None
    made = accomplice.replied(liar.greeted(accomplice.hello, CREDIT_BYTES), "there")
    assert made is not None
    with pytest.raises(HandshakeError, match="another token"):
        honest.proved(liar.proved(made), "there")


def test_a_token_on_one_side_only_is_refused_with_what_to_do() -> None:
    assert "--token-file FILE or set ADAMCTL_TOKEN" in refused(client(""), server())
    assert "this ps has none" in refused(client(), server(""))


def test_a_proof_is_of_no_use_on_another_connection() -> None:
    overheard = join(client(), server())
    late = server(number=3)
    late.greeted(overheard[0], CREDIT_BYTES)
    with pytest.raises(RemoteError, match="not the one"):
        late.proved(overheard[2])
    assert not late.done
    again = client(number=4)
    assert again.replied(overheard[1], "there") is not None
    with pytest.raises(HandshakeError, match="another token"):
        again.proved(overheard[3], "there")


def test_a_proof_sent_back_is_none() -> None:
    near, far = client(), server()
    proof = near.replied(far.greeted(near.hello, CREDIT_BYTES), "there")
    assert proof is not None
    with pytest.raises(HandshakeError):
        near.proved(ProveReply(proof.proof), "there")
    with pytest.raises(RemoteError):
        server().proved(ProveRequest(b""))


CHANGES_OF_HELLO: list[dict[str, Any]] = [
    {"role": "operator"},
    {"node": "w-2"},
    {"incarnation": 9},
    {"features": ()},
    {"version_highest": 2},
    {"cluster": "another"},
    {"nonce": nonce(9)},
]
CHANGES_OF_REPLY: list[dict[str, Any]] = [
    {"role": "controller"},
    {"node": "ps-1"},
    {"incarnation": 9},
    {"features": ()},
    {"credit_bytes": 1},
    {"cluster": "another"},
    {"nonce": nonce(9)},
]


@pytest.mark.parametrize("change", CHANGES_OF_HELLO, ids=str)
def test_what_the_client_says_cannot_be_changed_on_its_way(change: dict[str, Any]) -> None:
    near, far = client(), server()
    proof = near.replied(far.greeted(msgspec.structs.replace(near.hello, **change), CREDIT_BYTES), "there")
    assert proof is not None
    with pytest.raises(RemoteError, match="not the one"):
        far.proved(proof)


@pytest.mark.parametrize("change", CHANGES_OF_REPLY, ids=str)
def test_what_the_server_says_cannot_be_changed_on_its_way(change: dict[str, Any]) -> None:
    near, far = client(), server()
    reply = far.greeted(near.hello, CREDIT_BYTES)
    proof = near.replied(msgspec.structs.replace(reply, **change), "there")
    assert proof is not None
    with pytest.raises(RemoteError, match="not the one"):
        far.proved(proof)


def test_nobody_is_talked_out_of_proving() -> None:
    near, far = client(), server()
    reply = far.greeted(near.hello, CREDIT_BYTES)
    with pytest.raises(HandshakeError, match="does not prove"):
        near.replied(msgspec.structs.replace(reply, nonce=b""), "there")
    with pytest.raises(HandshakeError, match="does not prove"):
        near.replied(msgspec.structs.replace(reply, nonce=b"short"), "there")
    for short in (b"", b"short"):
        with pytest.raises(RemoteError) as caught:
            server().greeted(msgspec.structs.replace(near.hello, nonce=short), CREDIT_BYTES)
        assert caught.value.code == ErrorCode.WRONG_TOKEN


def test_a_token_that_is_sent_is_refused_even_if_it_is_right() -> None:
    with pytest.raises(RemoteError, match="earlier versions") as caught:
        server().greeted(Hello(1, 1, (), "worker", "old", 1, TOKEN), CREDIT_BYTES)
    assert TOKEN not in str(caught.value)


def test_a_server_of_an_earlier_version_is_told_apart() -> None:
    with pytest.raises(HandshakeError, match="earlier version"):
        client().replied(HelloReply(1, (), "ps", "old", 1, CREDIT_BYTES), "there")


def test_where_the_system_vouches_for_the_user_nothing_is_proved() -> None:
    assert len(join(client(trusted=True), server(trusted=True))) == 2
    assert len(join(client("", trusted=True), server(trusted=True))) == 2


def test_another_cluster_is_refused_by_either_side() -> None:
    with pytest.raises(RemoteError, match="cluster") as caught:
        join(client(cluster="aaaa"), server(cluster="bbbb"))
    assert caught.value.code == ErrorCode.WRONG_CLUSTER
    assert isinstance(refusal("there", ErrorReply(int(ErrorCode.WRONG_CLUSTER), "no")), WrongClusterError)
    for code in (ErrorCode.WRONG_TOKEN, ErrorCode.WRONG_IDENTITY):
        assert isinstance(refusal("there", ErrorReply(int(code), "no")), ProofError)
    assert not isinstance(refusal("there", ErrorReply(int(ErrorCode.UNSUPPORTED_VERSION), "no")), ProofError)
    near = client("", cluster="aaaa")
    answer = server("", cluster="bbbb").greeted(client("").hello, CREDIT_BYTES)
    with pytest.raises(WrongClusterError, match="belongs to cluster"):
        near.replied(answer, "there")
    join(client(cluster="aaaa"), server(cluster="aaaa"))
    join(client(), server(cluster="aaaa"))


def test_a_controller_that_does_not_know_its_cluster_serves_no_member_of_one() -> None:
    newborn = ServerHandshake(make_hello("controller", "c"), nonce(2), trusted=False)
    with pytest.raises(RemoteError) as caught:
        newborn.greeted(client("", cluster="aaaa").hello, CREDIT_BYTES)
    assert caught.value.code == ErrorCode.NOT_READY
    assert isinstance(refusal("there", ErrorReply(caught.value.code, "later")), UnreachableError)
