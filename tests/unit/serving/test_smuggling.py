"""Goal: who speaks HTTP in two ways at once gets no second request past whoever stands before the broker.

A proxy that reads the length of a body otherwise than the broker takes what follows for the body, and the broker takes
it for a request: of somebody else, who shares the connection. So where two could read differently there is no answer
but one refusal, and the connection ends. Method: raw bytes to a real server, with a request hidden in the body.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.unit.serving.server import Server, running

POST = "POST /v1/producers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = "GET /livez HTTP/1.1\r\nHost: localhost\r\n"
HIDDEN = f"{GET}\r\n"
CHUNKED = "Transfer-Encoding: chunked\r\n"

TWO_WAYS = {
    "length and chunks": f"{POST}Content-Length: 5\r\n{CHUNKED}\r\n0\r\n\r\n{HIDDEN}",
    "chunks and length": f"{POST}{CHUNKED}Content-Length: 5\r\n\r\n0\r\n\r\n{HIDDEN}",
    "two lengths": f"{POST}Content-Length: 2\r\nContent-Length: {2 + len(HIDDEN)}\r\n\r\n{{}}{HIDDEN}",
    "two lengths in one": f"{POST}Content-Length: 2, {2 + len(HIDDEN)}\r\n\r\n{{}}{HIDDEN}",
    "a length with a sign": f"{POST}Content-Length: +2\r\n\r\n{{}}{HIDDEN}",
    "a length with a space": f"{POST}Content-Length : 2\r\n\r\n{{}}{HIDDEN}",
    "a length in hexadecimal": f"{POST}Content-Length: 0x2\r\n\r\n{{}}{HIDDEN}",
    "a length with an underscore": f"{POST}Content-Length: 0_2\r\n\r\n{{}}{HIDDEN}",
    "another coding": f"{POST}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "chunks, and then something": f"{POST}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{HIDDEN}",
    "chunks twice": f"{POST}{CHUNKED}{CHUNKED}\r\n0\r\n\r\n{HIDDEN}",
    "a coding with a tab": f"{POST}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{HIDDEN}",
    "a space before the colon": f"{GET}X-A : b\r\n\r\n",
    "a folded header": f"{GET}X-A: b\r\n Content-Length: 5\r\n\r\n",
    "a zero byte": f"{GET}X-A: a\0b\r\n\r\n",
    "a bare return": f"{GET}X-A: a\rContent-Length: 5\r\n\r\n",
    "an extension with a bare return": f"{POST}{CHUNKED}\r\n2;\rxx\r\n{{}}\r\n0\r\n\r\n{HIDDEN}",
    "a chunk with a sign": f"{POST}{CHUNKED}\r\n+2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}",
    "a chunk without a number": f"{POST}{CHUNKED}\r\n\r\n{{}}\r\n0\r\n\r\n{HIDDEN}",
    "a chunk that ends too late": f"{POST}{CHUNKED}\r\n2\r\n{{}}xx\r\n0\r\n\r\n{HIDDEN}",
    "chunks that end in bare newlines": f"{POST}{CHUNKED}\r\n2\n{{}}\n0\n\n{HIDDEN}",
    "two hosts": f"{GET}Host: elsewhere.example\r\n\r\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("smuggling")) as found:
        yield found


def statuses(server: Server, said: str) -> list[int]:
    """Of all answers until the broker ends the connection, or has nothing more to say."""
    heard = b""
    with socket.create_connection(("127.0.0.1", server.port), 60) as connection:
        connection.sendall(said.encode("latin-1"))
        connection.shutdown(socket.SHUT_WR)
        try:
            while piece := connection.recv(1 << 16):
                heard += piece
        except ConnectionError:
            pass
    return [int(each) for each in re.findall(rb"HTTP/1\.[01] (\d{3}) [A-Za-z -]+\r\n", heard)]


@pytest.mark.parametrize("said", TWO_WAYS.values(), ids=list(TWO_WAYS))
def test_what_two_would_read_differently_is_refused_and_ends_the_connection(server: Server, said: str) -> None:
    found = statuses(server, said)
    assert len(found) == 1, found
    assert found[0] in (400, 403, 421, 431, 501), found
    assert server.api.get("/livez").status == 200


def test_what_is_said_in_one_way_is_answered_whole(server: Server) -> None:
    """Or the test above would pass with a broker that answers nothing twice."""
    assert statuses(server, f"{GET}\r\n{HIDDEN}") == [200, 200]
    assert statuses(server, f"{POST}{CHUNKED}\r\n2\r\n{{}}\r\n0\r\n\r\n{HIDDEN}") == [200, 200]
