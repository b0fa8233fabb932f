"""Goal: frames arrive whole and in order, in both directions at once, or the connection ends and both sides hear of it.

Method: two ends over loopback, in plain text and over TLS; one end is sometimes a bare socket.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from broker.link import framed as framed_module
from broker.link.codec import HEARTBEAT, PREAMBLE, Ended, LinkFrame, decode, encode
from broker.link.framed import BUFFER_BYTES, KEPT_BYTES_MAX, Framed, FrameTooLarge
from tests.support.certificates import Authority
from tests.support.processes import eventually

pytestmark = pytest.mark.slow
MOST = 1 << 26


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(params=["plain", "tls"])
def sockets(authority: Authority, request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname(), 60)
        there, _ = listener.accept()
    there.settimeout(60)
    if request.param == "tls":
        certificates = authority.cluster_certificates()
        contexts, made = certificates.contexts, list[ssl.SSLSocket]()
        wrap = lambda: made.append(contexts.server().wrap_socket(there, server_side=True))  # noqa: E731
        thread = threading.Thread(target=wrap)
        thread.start()
        here = contexts.client().wrap_socket(here, server_hostname="127.0.0.1")
        thread.join()
        [there] = made
    yield here, there
    here.close()
    there.close()


@pytest.fixture
def two(sockets: tuple[socket.socket, socket.socket]) -> tuple[Framed, Framed]:
    return Framed(sockets[0]), Framed(sockets[1])


def frames_of(rng: random.Random, count: int) -> list[LinkFrame]:
    sizes = (0, 1, 11, 12, 13, 500, BUFFER_BYTES - 12, BUFFER_BYTES, BUFFER_BYTES + 1, 300_000)
    made = [LinkFrame(rng.randbytes(rng.choice((1, 30, 200))), rng.getrandbits(32), rng.randbytes(rng.choice(sizes)))]
    return [*made, *(frames_of(rng, count - 1) if count > 1 else [])]


def kept(frame: LinkFrame) -> LinkFrame:
    """Its data hold until the next one is read."""
    return LinkFrame(frame.head, frame.head_crc, bytes(frame.data))


def test_much_goes_both_ways_at_once(two: tuple[Framed, Framed]) -> None:
    """Over TLS, too, where one thread at a time may be at a connection of OpenSSL's (M1)."""
    said = [frames_of(random.Random(seed), 150) for seed in range(2)]
    heard: list[list[LinkFrame]] = [[], []]

    def writes(at: int) -> None:
        for frame in said[at]:
            two[at].write(frame)

    def reads(at: int) -> None:
        while len(heard[at]) < len(said[1 - at]) and (frame := two[at].read(MOST)) is not None:
            heard[at].append(kept(frame))

    threads = [threading.Thread(target=act, args=(at,)) for act in (writes, reads) for at in (0, 1)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert heard == [said[1], said[0]]


def test_frames_that_come_in_pieces_are_whole(sockets: tuple[socket.socket, socket.socket]) -> None:
    rng = random.Random(3)
    said = [*frames_of(rng, 20), HEARTBEAT]
    data = b"".join(frame.to_bytes() for frame in said)

    def writes() -> None:
        at = 0
        while at < len(data):
            step = rng.choice((1, 5, 12, 1_000, 70_000))
            sockets[0].sendall(data[at : at + step])
            at += step

    writer, framed = threading.Thread(target=writes), Framed(sockets[1])
    writer.start()
    assert [kept(framed.read(MOST) or HEARTBEAT) for _ in said] == said
    writer.join()


def test_it_is_known_that_more_of_a_frame_has_come(sockets: tuple[socket.socket, socket.socket]) -> None:
    """A large one may take long: who waits for it may see that it comes."""
    framed, data = Framed(sockets[1]), LinkFrame(b"head", 1, bytes(300_000)).to_bytes()
    reader = threading.Thread(target=lambda: framed.read(MOST))
    reader.start()
    for end in (5, 100, 70_000, 200_000):
        sockets[0].sendall(data[framed.coming : end])
        eventually(lambda end=end: framed.coming == end, what=f"{end} bytes")  # type: ignore[misc]
    sockets[0].sendall(data[200_000:])
    reader.join(60)
    assert framed.coming == 0


@pytest.mark.parametrize("size", [0, 1, 12_000])
def test_a_small_frame_is_read_at_once(sockets: tuple[socket.socket, socket.socket], size: int) -> None:
    """Over TLS each write is a record of its own, of 16 KiB at most, and is read by itself (M8)."""
    said = LinkFrame(b"head", 1, bytes(size))
    Framed(sockets[0]).write(said)
    assert sockets[1].recv(1 << 16) == said.to_bytes()


def test_what_openssl_has_read_already_is_not_waited_for(two: tuple[Framed, Framed]) -> None:
    """M8: several frames come in one record, and nothing after them."""
    said = [LinkFrame(b"head", at, bytes(100)) for at in range(100)]
    two[0].send(b"".join(frame.to_bytes() for frame in said))
    assert [kept(two[1].read(MOST, time.monotonic() + 60) or HEARTBEAT) for _ in said] == said
    with pytest.raises(TimeoutError):
        two[1].read(MOST, time.monotonic())


@pytest.mark.parametrize("place", [1, PREAMBLE.size, PREAMBLE.size + 3, 100_000])
def test_an_end_amid_a_frame_is_no_frame(sockets: tuple[socket.socket, socket.socket], place: int) -> None:
    sockets[0].sendall(LinkFrame(b"head", 1, bytes(200_000)).to_bytes()[:place])
    socket.socket.shutdown(sockets[0], socket.SHUT_WR)
    with pytest.raises(OSError, match="amid a frame"):
        Framed(sockets[1]).read(MOST)


def test_an_end_between_frames_is_the_end(two: tuple[Framed, Framed]) -> None:
    two[0].write(HEARTBEAT)
    two[0].end()
    assert two[1].read(MOST) == HEARTBEAT
    assert two[1].read(MOST) is None


def test_more_than_may_be_is_refused_before_it_is_read(two: tuple[Framed, Framed]) -> None:
    two[0].write(LinkFrame(bytes(60), 0, bytes(40)))
    two[0].write(LinkFrame(bytes(60), 0, bytes(41)))
    assert two[1].read(100) is not None
    with pytest.raises(FrameTooLarge, match="a frame of 101 bytes, 100 are the limit"):
        two[1].read(100)


def test_what_does_not_come_in_time_is_waited_for_no_longer(two: tuple[Framed, Framed]) -> None:
    with pytest.raises(TimeoutError):
        two[1].read(MOST, time.monotonic() + 0.05)


def test_a_frame_that_has_begun_is_whole_in_time(sockets: tuple[socket.socket, socket.socket]) -> None:
    framed = Framed(sockets[1])
    looks = threading.Thread(target=lambda: (time.sleep(0.1), sockets[0].sendall(HEARTBEAT.to_bytes())))
    looks.start()
    assert framed.read(MOST, whole_s=0.02) == HEARTBEAT, "one that has not begun is waited for"
    looks.join()
    sockets[0].sendall(LinkFrame(b"head", 1, bytes(100)).to_bytes()[:50])
    with pytest.raises(TimeoutError):
        framed.read(MOST, whole_s=0.02)


def test_who_takes_nothing_is_cut(two: tuple[Framed, Framed], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framed_module, "STALLED_S", 0.2)
    with pytest.raises(TimeoutError, match="it took nothing"):
        two[0].write(LinkFrame(b"x", 0, bytes(1 << 28)))


def test_who_takes_a_little_is_not_cut(
    sockets: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poll says so only once much of the buffer is free."""
    monkeypatch.setattr(framed_module, "STALLED_S", 0.4)
    monkeypatch.setattr(framed_module, "TRY_S", 0.05)
    framed, is_over = Framed(sockets[0]), threading.Event()

    def reads() -> None:
        while not is_over.wait(0.01):
            sockets[1].recv(50_000)

    reader = threading.Thread(target=reads)
    reader.start()
    try:
        for _ in range(12):
            framed.write(LinkFrame(b"x", 0, bytes(1 << 20)))
    finally:
        is_over.set()
        reader.join()


def test_what_the_socket_does_not_take_goes_before_the_next_frame(two: tuple[Framed, Framed]) -> None:
    """M2: `say` waits for nobody."""
    said, is_taken = [], True
    while is_taken:
        said.append(LinkFrame(b"%d" % len(said), 0, random.Random(len(said)).randbytes(1 << 20)))
        is_taken = two[0].say(lambda: said[-1])
    assert not two[0].say(lambda: pytest.fail("it would have to wait"))
    heard: list[LinkFrame] = []

    def reads() -> None:
        while (frame := two[1].read(MOST)) is not None and frame != HEARTBEAT:
            heard.append(kept(frame))

    reader = threading.Thread(target=reads)
    reader.start()
    two[0].write_made(lambda: None)
    assert two[0].say(lambda: HEARTBEAT)
    reader.join(60)
    assert heard == said


def test_who_waits_for_his_turn_says_what_is_so_by_then(two: tuple[Framed, Framed]) -> None:
    """M6."""
    newest, asked = [0], threading.Event()

    def made() -> LinkFrame:
        asked.set()
        return LinkFrame(b"%d" % newest[0], 0)

    with two[0]._writing:
        writer = threading.Thread(target=two[0].write_made, args=(made,))
        writer.start()
        assert not asked.wait(0.05)
        newest[0] = 1
    writer.join(60)
    assert two[1].read(MOST) == LinkFrame(b"1", 0)


def test_two_who_write_at_once_write_whole_frames(two: tuple[Framed, Framed]) -> None:
    frames = [[LinkFrame(bytes([number]), 0, bytes([number]) * 100_000)] * 50 for number in range(3)]
    threads = [threading.Thread(target=lambda said=said: [two[0].write(each) for each in said]) for said in frames]
    for each in threads:
        each.start()
    heard = [kept(two[1].read(MOST) or HEARTBEAT) for _ in range(150)]
    for each in threads:
        each.join()
    assert sorted(heard) == sorted(frames[0] + frames[1] + frames[2])


def test_the_last_frame_arrives_although_much_was_not_read(sockets: tuple[socket.socket, socket.socket]) -> None:
    """M5. A socket that is closed with something unread in it takes back what it has sent."""
    framed, caller = Framed(sockets[0]), Framed(sockets[1])
    caller.write(LinkFrame(b"x", 0, bytes(100_000)))

    def leaves() -> None:
        framed.farewell(encode(Ended("ABORTED", "why")))
        framed.close()

    leaver = threading.Thread(target=leaves)
    leaver.start()
    frame = caller.read(MOST)
    assert frame is not None
    assert decode(frame) == Ended("ABORTED", "why")
    caller.close()
    leaver.join(60)


def test_whoever_reads_hears_of_an_end_on_another_thread(two: tuple[Framed, Framed]) -> None:
    heard: list[object] = []
    reader = threading.Thread(target=lambda: heard.append(two[0].read(MOST)))
    reader.start()
    two[0].end()
    reader.join(60)
    assert heard == [None]


def test_who_says_something_as_it_is_closed_hears_so(two: tuple[Framed, Framed]) -> None:
    """M7. Its descriptor may be a segment's by then."""
    two[0].end()
    two[0].close()
    two[0].end()
    with pytest.raises(OSError, match="it is closed"):
        two[0].say(lambda: HEARTBEAT)


def test_large_frames_share_their_memory_and_the_largest_leave_none(two: tuple[Framed, Framed]) -> None:
    sizes = [100_000, 200_000, KEPT_BYTES_MAX, KEPT_BYTES_MAX + 1, 100_000]
    writer = threading.Thread(target=lambda: [two[0].write(LinkFrame(b"x", 0, bytes(size))) for size in sizes])
    writer.start()
    memory = [memoryview((two[1].read(MOST) or HEARTBEAT).data).obj for _ in sizes]
    writer.join()
    assert memory[0] is memory[1]
    assert memory[2] is memory[4]
    eventually(lambda: len(two[1]._kept) == KEPT_BYTES_MAX, what="the memory that is kept")


def test_bytes_of_a_stranger_are_taken_as_they_are(sockets: tuple[socket.socket, socket.socket]) -> None:
    sockets[0].sendall(b"llq3rest")
    framed = Framed(sockets[1])
    assert framed.take(4, time.monotonic() + 60) == b"llq3"
    sockets[0].sendall(b"more")
    socket.socket.shutdown(sockets[0], socket.SHUT_WR)
    assert framed.take(100, time.monotonic() + 60) == b"restmore"
