"""A decoder with a fault behind three comparisons, each within the one before: no blind change gets there."""

from __future__ import annotations

from typing import Final

from tests.fuzz.decoder import Decoder


def check_planted(data: bytes) -> None:
    if data[:1] == b"\x17":
        if int.from_bytes(data[1:5], "little") == 0x5EED_CAFE:
            if data[5:9] == b"deep":
                raise ZeroDivisionError("the planted fault")
            raise ValueError("another version")
        raise ValueError("another number")


PLANTED: Final = Decoder(
    name="planted", modules=(), check=check_planted, errors=(ValueError,), _inputs=[bytes(12), b"something else"]
)
