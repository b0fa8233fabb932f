"""gRPC's health: of the process (`""`), and of the services that it has.

Who may ask is everybody, as with `/livez`: it says what a connection says that is taken.
"""

from __future__ import annotations

from typing import Final

from broker.api.proto import grpc_health_pb2 as pb
from broker.serving.liftbridge.calls import HEALTH, SERVICE, Handling, Methods
from broker.serving.liftbridge.messages import parsed
from broker.serving.liftbridge.statuses import Code, StatusError

METHODS: Final = Methods()
SERVICES: Final = frozenset({"", SERVICE})


@METHODS.add("Check", service=HEALTH)
async def check(asking: Handling) -> None:
    """Whether it takes calls."""
    asked = parsed(pb.HealthCheckRequest, await asking.call.message())
    if asked.service not in SERVICES:
        raise StatusError(Code.NOT_FOUND, f"there is no service {asked.service[:100]!r}")
    await _tell(asking, asked.service)


@METHODS.add("Watch", service=HEALTH, is_stream=True)
async def watch(asking: Handling) -> None:
    """The same now, and when it changes. Of a service that is not there it says so, and goes on, as gRPC has it."""
    asked = parsed(pb.HealthCheckRequest, await asking.call.message())
    await _tell(asking, asked.service)
    with asking.call.waiting():
        await asking.serving.draining.wait()
    if asked.service in SERVICES:
        await _tell(asking, asked.service)


async def _tell(asking: Handling, service: str) -> None:
    status = pb.HealthCheckResponse.SERVING
    if service not in SERVICES:
        status = pb.HealthCheckResponse.SERVICE_UNKNOWN
    elif asking.serving.draining.is_set():
        status = pb.HealthCheckResponse.NOT_SERVING
    await asking.call.send([pb.HealthCheckResponse(status=status).SerializeToString()])
