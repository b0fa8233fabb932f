"""Broker addresses: what is accepted, and that what is not is named."""

from __future__ import annotations

import pytest

from broker.api.errors import InvalidRequest
from broker.client.http.address import Address, parse_address, parse_addresses


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost", "localhost", 9293),
        ("localhost:1234", "localhost", 1234),
        (" broker-1.example:1234 ", "broker-1.example", 1234),
        ("http://localhost:1234", "localhost", 1234),
        ("HTTP://localhost/", "localhost", 9293),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[::1]:1234", "::1", 1234),
        ("[::1]", "::1", 9293),
        ("::1", "::1", 9293),
        ("http://[fe80::2]:80/", "fe80::2", 80),
    ],
)
def test_every_documented_form_is_read(text: str, host: str, port: int) -> None:
    assert parse_address(text) == Address(host, port)


MALFORMED = (
    "localhost:0",
    "localhost:65536",
    "localhost:",
    "localhost:http",
    "http://",
    ":9293",
    "http://localhost/v1",
    "localhost?x=1",
    "ftp://localhost",
    "[::1:9293",
    "a b",
    "a..b",
    "x" * 64 + ":1",
)


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_malformed_is_named(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)


def test_https_is_the_same_port_over_tls() -> None:
    assert parse_address("https://broker") == Address("broker", 9293, is_tls=True)
    assert parse_address("HTTPS://[::1]:1/") == Address("::1", 1, is_tls=True)


def test_the_text_of_an_address_is_read_as_the_same_one() -> None:
    for address in (Address("a", 1), Address("::1", 2), Address("a", 1, is_tls=True), Address("::1", 2, is_tls=True)):
        assert parse_address(str(address)) == address


def test_https_holds_for_all_addresses_or_none() -> None:
    with pytest.raises(InvalidRequest, match=r"https://a:9293, b:9293: some are https"):
        parse_addresses("https://a,b")
    assert all(address.is_tls for address in parse_addresses("https://a,https://b:1"))


def test_credentials_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address("http://me:secret@localhost")
    assert "secret" not in str(caught.value)


def test_several_are_read_in_order_and_once() -> None:
    three = (Address("a", 1), Address("b", 2), Address("c"))
    assert parse_addresses("a:1,b:2, c,a:1,") == three
    assert parse_addresses(["a:1", "b:2,c"]) == three


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_no_address_is_an_error(nothing: str | list[str]) -> None:
    with pytest.raises(InvalidRequest, match="no broker address"):
        parse_addresses(nothing)


def test_an_address_reads_back() -> None:
    for address in (Address("::1", 5), Address("h", 6)):
        assert parse_address(str(address)) == address
