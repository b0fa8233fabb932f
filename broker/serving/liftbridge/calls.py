"""The table of calls: what answers each, and of which operations of the HTTP API it is made.

L1  A call has the permissions of its operations, and it asks for no others (`Handling`). One that names none does not
    load, but for those that say nothing (`OPEN`).
L2  What is none of them is UNIMPLEMENTED.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from broker.serving.liftbridge.call import Call
from broker.serving.liftbridge.door import BY_OPERATION, Within

if TYPE_CHECKING:
    from broker.serving.contract.endpoint import Serving
    from broker.serving.liftbridge.shares import Shares

SERVICE: Final = "proto.API"
HEALTH: Final = "grpc.health.v1.Health"
OPEN: Final = frozenset({f"/{HEALTH}/Check", f"/{HEALTH}/Watch"})


class Doorway(Protocol):
    """`door.WayIn`."""

    principal: str

    async def ask(
        self,
        operation: str,
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        data: bytes | None = None,
        media: str = ...,
    ) -> Within:
        """As `door.WayIn.ask`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """Where clients of Liftbridge reach the brokers.

    Attributes:
        here: Host and port of this one.
        of: Host and port of another one, by the address of its HTTP API.
    """

    here: tuple[str, int]

    def of(self, http: str) -> tuple[str, int]:
        """Of another broker: at the host of its HTTP API, and the port of this one. The catalog knows no other."""
        host, _, _ = http.rpartition(":")
        return host.strip("[]"), self.here[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handling:
    """One call, for what answers it.

    Attributes:
        operations: Those of its row (L1).
        shares: What consumers of groups were told here.
    """

    call: Call
    serving: Serving
    addresses: Reachable
    door: Doorway
    operations: tuple[str, ...]
    shares: Shares

    async def ask(self, operation: str, **request: Any) -> Within:
        """Carry out an operation of HTTP's. Raises LiftlogError."""
        assert operation in self.operations, f"{self.call.path}: L1, {operation}"
        return await self.door.ask(operation, **request)


Answering = Callable[[Handling], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One call of the API.

    Attributes:
        operations: The operations of HTTP that it may carry out.
        is_stream: It may last; it has no deadline but the client's.
    """

    path: str
    summary: str
    answer: Answering
    operations: tuple[str, ...]
    is_stream: bool = False

    def __post_init__(self) -> None:
        assert (self.operations == ()) == (self.path in OPEN), f"{self.path}: L1"
        for operation in self.operations:
            assert operation in BY_OPERATION, f"{self.path}: L1, there is no operation {operation}"


class Methods(list[Method]):
    """The calls of one module, each added by what answers it."""

    def add(
        self, name: str, *operations: str, service: str = SERVICE, is_stream: bool = False
    ) -> Callable[[Answering], Answering]:
        """Let a function answer this call. Its docstring is the summary."""

        def take(answer: Answering) -> Answering:
            summary = " ".join((answer.__doc__ or "").split())
            path = f"/{service}/{name}"
            self.append(Method(path=path, summary=summary, answer=answer, operations=operations, is_stream=is_stream))
            return answer

        return take
