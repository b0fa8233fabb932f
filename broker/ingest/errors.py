"""The one error of ingest: bytes on the connection that are not the NATS protocol.

Everything else that can be wrong with a message is a refusal: counted, answered, and the next
message goes on. After this error the position in the byte stream is lost, so the connection is.
"""

from __future__ import annotations

from typing import Any, Final

EXCERPT_BYTES_MAX: Final = 64


class IntakeProtocolError(ValueError):
    """The server (or something between) sent bytes that are not the NATS protocol.

    Records parsed before them are in their builders and stay there. `Intake.feed` raises the same
    error again until `Intake.reset`.

    Attributes:
        problem: The fault, in a few words.
        position: Byte of the connection, counted since the last reset, at which it goes wrong.
        excerpt: Up to `EXCERPT_BYTES_MAX` bytes from there.
        events: Control operations parsed earlier in the same feed, in order.
    """

    def __init__(
        self, problem: str, position: int, excerpt: bytes, events: list[tuple[Any, ...]] | None = None
    ) -> None:
        super().__init__(problem, position, excerpt, events or [])  # fields, not text: so the error pickles
        self.problem = problem
        self.position = position
        self.excerpt = excerpt
        self.events: list[tuple[Any, ...]] = events or []

    def __str__(self) -> str:
        return f"not the NATS protocol: {self.problem}, at byte {self.position} of the connection: {self.excerpt!r}"
