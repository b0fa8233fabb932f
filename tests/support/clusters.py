"""Real brokers that are a cluster, with a real nats-server: started, watched, killed, stopped, started again."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from broker.api.errors import Retryable
from broker.client import Appended, Client, connect
from broker.client.writing.append import Stamp
from broker.client.writing.records import Records
from tests.support.network import Network
from tests.support.processes import BrokerProcess, NatsServer, eventually, free_port

T = TypeVar("T")
IDS = ("a", "b", "c")
WAIT_S = 60.0
SECRET = "known to these three only"


class RealCluster:
    """Brokers `a`, `b` and `c` in one folder.

    Attributes:
        brokers: By id; those that were killed too.

    Args:
        later: Those of `ids` that are not among the first voters: they join.
        network: Each broker is on the host of its name; None: all are on this one.
        command: A broker's, where it is not `liftlog broker`.
    """

    def __init__(
        self,
        folder: Path,
        nats: NatsServer | None,
        *,
        ids: tuple[str, ...] = IDS,
        later: tuple[str, ...] = (),
        network: Network | None = None,
        command: Callable[[str], Sequence[str]] = lambda broker: ("broker.cli.main", "broker"),
        **env: str,
    ) -> None:
        hosts = {broker: network.address(broker) if network is not None else "127.0.0.1" for broker in ids}
        ports = {broker: free_port(3) for broker in ids}
        voters = ",".join(
            f"{broker}@{hosts[broker]}:{port + 2}" for broker, port in ports.items() if broker not in later
        )
        self.nats = nats
        self._common = {
            "LIFTLOG_CLUSTER_ID": "tests",
            "LIFTLOG_CLUSTER_VOTERS": voters,
            "LIFTLOG_RAFT_SECRET": SECRET,
            **env,
        }
        self.brokers = {
            broker: BrokerProcess(
                folder / broker,
                nats,
                port=port,
                host=hosts[broker],
                prefix=network.prefix(broker) if network is not None else (),
                command=command(broker),
                env={
                    "LIFTLOG_BROKER_ID": broker,
                    "LIFTLOG_GRPC_HOST": hosts[broker],
                    "LIFTLOG_RAFT_HOST": hosts[broker],
                    "LIFTLOG_GRPC_PORT": str(port + 1),
                    "LIFTLOG_RAFT_PORT": str(port + 2),
                    "LIFTLOG_CLUSTER_RACK": f"rack-{broker}",
                    **self._common,
                },
            )
            for broker, port in ports.items()
        }

    def another(self, folder: Path, broker: str, **env: str) -> BrokerProcess:
        """A broker on ports of its own that is configured as these are, but for `env`; not started."""
        port = free_port(3)
        own = {"BROKER_ID": broker, "GRPC_PORT": str(port + 1), "RAFT_PORT": str(port + 2)}
        named = {f"LIFTLOG_{key}": value for key, value in own.items()}
        return BrokerProcess(folder, self.nats, port=port, env={**named, **self._common, **env})

    @property
    def running(self) -> dict[str, BrokerProcess]:
        """Those that have a process."""
        return {broker: process for broker, process in self.brokers.items() if process.process is not None}

    @property
    def addresses(self) -> list[str]:
        """The addresses of all, running or not."""
        return [process.address for process in self.brokers.values()]

    def start(self) -> RealCluster:
        """Start all, and wait until all are ready and consumer offsets are kept by three."""
        for process in self.brokers.values():
            process.start(wait=False)
        for broker in self.brokers:
            self.wait_ready(broker)
        return self

    def wait_ready(self, broker: str) -> None:
        try:
            eventually(self.brokers[broker].is_ready, timeout_s=WAIT_S, what=f"broker {broker} ready")
        except AssertionError as error:
            ended = {name: each.output()[-1000:] for name, each in self.running.items() if each.has_ended}
            raise AssertionError(f"{error}\n{self.brokers[broker].output()[-4000:]}\nhave ended: {ended}") from None

    def stop(self) -> None:
        """The last one is killed: it has no majority to hand over to, and would look for one for 6 s."""
        *most, last = self.running.values() or (None,)
        for process in most:
            process.stop()
        if last is not None:
            last.kill9()

    def client(self, *brokers: str, deadline_s: float = 30.0) -> Client:
        """One that was given these, or all."""
        return connect(
            [self.brokers[broker].address for broker in brokers or self.brokers],
            deadline_s=deadline_s,
            token_file=self._common.get("LIFTLOG_AUTH_ADMIN_TOKEN_FILE"),
        )

    def describe(self, stream: str, *, by: str | None = None) -> dict[str, Any]:
        """A stream as one broker describes it."""
        process = self.brokers[by] if by is not None else next(iter(self.running.values()))
        found: dict[str, Any] = process.get(f"/v1/streams/{stream}")
        return found

    def state(self, stream: str, partition: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.describe(stream)["partitions"][partition]
        return found

    def leader(self, stream: str, partition: int = 0) -> str:
        """The broker that leads and answers; waits for one."""

        def look() -> str | None:
            try:
                state = self.state(stream, partition)
            except (OSError, urllib.error.URLError):
                return None
            leader = state["leader"]
            if leader is None or leader["id"] not in self.running or state["high_watermark"] is None:
                return None
            return str(leader["id"])

        found = eventually(look, timeout_s=WAIT_S, what=f"a leader of {stream}/{partition}")
        assert found is not None
        return found

    def in_sync(self, stream: str, count: int, partition: int = 0) -> None:
        """Wait for so many."""

        def look() -> bool:
            try:
                return len(self.state(stream, partition)["isr"]) == count
            except (OSError, urllib.error.URLError):
                return False

        eventually(look, timeout_s=WAIT_S, what=f"{count} in sync of {stream}/{partition}")

    def controller(self) -> str:
        """The broker that leads the Raft group."""

        def look() -> str | None:
            for process in self.running.values():
                try:
                    found = process.get("/v1/cluster")["controller"]
                except (OSError, urllib.error.URLError):
                    continue
                if found in self.running:
                    return str(found)
            return None

        found = eventually(look, timeout_s=WAIT_S, what="a controller")
        assert found is not None
        return found


def store(client: Client, stream: str, partition: int, records: Records) -> Appended:
    """Append once, whatever happens meanwhile: on a busy machine a session may lapse, and then nobody knows."""

    def once(attempt: Callable[[], T]) -> T:
        def attempted() -> tuple[T] | None:
            with suppress(Retryable):
                return (attempt(),)
            return None

        found = eventually(attempted, what=f"{stream}/{partition} to take records")
        assert found is not None
        return found[0]

    stamp = Stamp(*once(client.register_producer), sequence=0)
    return once(lambda: client.append(stream, partition, records, stamp=stamp))


@contextmanager
def three(
    folder: Path, *, ids: tuple[str, ...] = IDS, later: tuple[str, ...] = (), **env: str
) -> Iterator[RealCluster]:
    """A nats-server and three brokers, or those of `ids`, ready; all end with the block."""
    with ExitStack() as stack:
        nats = NatsServer(folder / "nats").start()
        stack.callback(nats.stop)
        made = RealCluster(folder, nats, ids=ids, later=later, **env)
        stack.callback(made.stop)
        yield made.start()
