"""The CRC-32C of bytes of which only some are there. Arithmetic only.

    crc(a + b)            =  after(crc(a), len(b)) ^ crc(b)
    behind(crc(a), n)     =  crc(a + n zeros)

A CRC is linear: if some bytes are taken as zeros, what is lacking then is what these add, whatever the others are.
`after` is what n zeros do to the register. A table for each power of two and each byte of the register does it.

Source: zlib's `crc32_combine`, by Mark Adler.
"""

from __future__ import annotations

from functools import cache
from typing import Final

Tables = tuple[list[int], list[int], list[int], list[int]]

_POLYNOMIAL: Final = 0x82F63B78
_ONES: Final = 0xFFFFFFFF


def behind(crc: int, zeros: int) -> int:
    """What a CRC becomes with so many zeros more."""
    return after(crc ^ _ONES, zeros) ^ _ONES if zeros else crc


def adds(crc: int, byte_count: int, followed_by: int) -> int:
    """What some bytes add to the CRC of a whole, to that with zeros in their place.

    Args:
        crc: Of these bytes alone.
        byte_count: So many they are.
        followed_by: And so many are behind them in the whole.
    """
    return after(crc ^ behind(0, byte_count), followed_by)


def after(crc: int, byte_count: int) -> int:
    """What is to be joined (XOR) with the CRC of n >= 0 bytes that follow."""
    power = 0
    while byte_count:
        if byte_count & 1:
            first, second, third, fourth = _zeros(power)
            crc = first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]
        byte_count >>= 1
        power += 1
    return crc


@cache
def _zeros(power: int) -> Tables:
    """What 2 ** power zeros do: by the value of each byte of the register, the lowest first."""
    if power == 0:
        return (
            [_byte(value) for value in range(256)],
            list(range(256)),
            [b << 8 for b in range(256)],
            [b << 16 for b in range(256)],
        )
    first, second, third, fourth = half = _zeros(power - 1)

    def twice(crc: int) -> int:
        return first[crc & 255] ^ second[crc >> 8 & 255] ^ third[crc >> 16 & 255] ^ fourth[crc >> 24]

    a, b, c, d = ([twice(crc) for crc in table] for table in half)
    return a, b, c, d


def _byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc
