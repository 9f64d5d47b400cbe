"""Bytes in, bytes out: the TLS layer without sockets, against peers that are honest, cut off, changed, or hostile."""

from __future__ import annotations

import ssl
from random import Random

import pytest

from adamctl.net.tls.credentials import Loaded
from adamctl.net.tls.engine import PIECE_BYTES, TlsEngine
from tests.net.tls.certificates import Authority


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return Authority(tmp_path_factory.mktemp("tls")).credentials("ps", "ps-0").current


def ends(loaded: Loaded) -> tuple[TlsEngine, TlsEngine]:
    return TlsEngine(loaded.client, server_side=False), TlsEngine(loaded.server, server_side=True)


def joined(loaded: Loaded) -> tuple[TlsEngine, TlsEngine]:
    client, server = ends(loaded)
    for _ in range(3):
        client.shake()
        server.receive(memoryview(client.take()))
        server.shake()
        client.receive(memoryview(server.take()))
    assert client.established and server.established
    return client, server


def read(engine: TlsEngine, size: int) -> bytes:
    window = memoryview(bytearray(size))
    return bytes(window[: engine.decrypt(window)])


def test_both_ends_know_each_other_after_a_handshake_of_tls_1_3(loaded: Loaded) -> None:
    client, server = joined(loaded)
    for end in (client, server):
        assert ("URI", "adam://nord/ps/ps-0") in end.certificate["subjectAltName"]
        assert end._ssl.version() == "TLSv1.3"


def test_no_ticket_is_given_out(loaded: Loaded) -> None:
    """What the server sends last is its part of the handshake: nothing that another connection could begin with."""
    client, server = joined(loaded)
    assert server.take() == b"" and client._ssl.session_reused is False
    assert (read(client, 100) == b"" and client._ssl.session is None) or not client._ssl.session.has_ticket


def test_bytes_arrive_as_they_were_sent_however_they_are_cut(loaded: Loaded) -> None:
    for seed in range(20):
        random = Random(seed)
        client, server = joined(loaded)
        sent, got, wire = bytearray(), bytearray(), bytearray()
        for _ in range(random.randint(1, 30)):
            piece = random.randbytes(random.choice((1, 17, 1000, 16384, 40000)))
            sent += piece
            wire += client.encrypt(piece)
            while wire and random.random() < 0.7:
                count = random.randint(1, len(wire))
                server.receive(memoryview(bytes(wire[:count])))
                del wire[:count]
                while found := read(server, random.choice((1, 100, 16384, PIECE_BYTES))):
                    got += found
        server.receive(memoryview(bytes(wire)))
        while found := read(server, PIECE_BYTES):
            got += found
        assert got == sent, f"seed {seed}"


def test_a_long_window_is_filled_by_one_call(loaded: Loaded) -> None:
    client, server = joined(loaded)
    data = Random(1).randbytes(PIECE_BYTES)
    server.receive(memoryview(client.encrypt(data)))
    assert read(server, PIECE_BYTES) == data and server.undecrypted_bytes == 0


def test_every_changed_byte_ends_the_stream_before_anything_of_its_record_is_seen(loaded: Loaded) -> None:
    for seed in range(60):
        random = Random(seed)
        client, server = joined(loaded)
        wire = bytearray(client.encrypt(b"first") + client.encrypt(b"second") + client.encrypt(b"third" * 10_000))
        place = random.randrange(len(wire))
        wire[place] ^= 1 << random.randrange(8)
        server.receive(memoryview(bytes(wire)))
        got = b""
        with pytest.raises(ssl.SSLError):
            for _ in range(20):
                got += read(server, 7000)
                server.receive(memoryview(client.encrypt(b"x" * 16384)))  # a longer length waits for more
        assert (b"first" + b"second" + b"third" * 10_000).startswith(got), f"seed {seed}"
        with pytest.raises(ssl.SSLError):  # the reason is told again
            server.decrypt(memoryview(bytearray(10)))


def test_records_that_are_left_out_doubled_or_reordered_end_the_stream(loaded: Loaded) -> None:
    for order in ([1], [0, 0], [1, 0], [0, 2]):
        client, server = joined(loaded)
        records = [client.encrypt(text) for text in (b"a", b"b", b"c")]
        for number in order:
            server.receive(memoryview(records[number]))
        with pytest.raises(ssl.SSLError):
            for _ in range(4):
                read(server, 10)


def test_a_stream_that_has_ended_says_so(loaded: Loaded) -> None:
    client, server = joined(loaded)
    server.receive(memoryview(client.encrypt(b"last words") + client.end()))
    assert read(server, 100) == b"last words"
    with pytest.raises(ssl.SSLZeroReturnError):
        server.decrypt(memoryview(bytearray(10)))


def test_hostile_bytes_never_do_more_than_end_the_handshake(loaded: Loaded) -> None:
    """Bytes by chance, and handshakes with bytes changed by chance, at both ends: typed errors, never a crash or a
    connection."""
    for seed in range(150):
        random = Random(seed)
        client, server = ends(loaded)
        noise = random.randbytes(random.randint(1, 400))
        if random.random() < 0.5:
            noise = b"\x16\x03\x01" + len(noise).to_bytes(2, "big") + noise
        engine = random.choice((client, server))
        engine.shake()
        engine.take()
        try:
            for _ in range(3):
                engine.receive(memoryview(noise))
                assert not engine.shake(), f"seed {seed}"
        except ssl.SSLError:
            engine.take()
        assert engine.certificate == {}


def test_a_handshake_whose_bytes_are_changed_is_never_completed(loaded: Loaded) -> None:
    for seed in range(100):
        random = Random(seed)
        client, server = ends(loaded)
        changed = False
        try:
            for step in range(4):
                for near, far in ((client, server), (server, client)):
                    near.shake()
                    data = bytearray(near.take())
                    if data and not changed and (random.random() < 0.5 or step == 1):
                        place = random.randrange(5, len(data)) if len(data) > 5 else 0
                        data[place] ^= 1 << random.randrange(8)
                        changed = True
                    far.receive(memoryview(bytes(data)))
            server.shake()
            read(client, 10)
        except ssl.SSLError:
            continue
        assert not changed or not (client.established and server.established), f"seed {seed}"
