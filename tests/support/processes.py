"""Real nats-server and broker processes for tests: started on free ports, waited for, killed, restarted."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from broker.api.http import is_loopback

T = TypeVar("T")
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_luck = random.SystemRandom()  # not the common generator: Hypothesis sets its seed, and two test runs would agree
_given: set[int] = set()
_locks: int | None = None


def eventually(condition: Callable[[], T], *, timeout_s: float = 60.0, what: str = "") -> T:
    """Call until the result is true; return it. A deadline, no luck. The longer it takes, the less often it is asked:
    most conditions are calls, which cost the broker as much as this process."""
    began = time.monotonic()
    while True:
        if result := condition():
            return result
        waited_s = time.monotonic() - began
        if waited_s > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(min(0.01 + waited_s / 20, 0.15))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A process of which no thread runs meanwhile; it may be killed."""
    os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: is_stopped(pid), what="it stops")
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    """Whether no thread of a process runs. One that stops itself does so some time after it has decided to."""
    return all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir())


def _is_stopped(task: Path) -> bool:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:  # it ended just now
        return True


def free_port(count: int = 1) -> int:
    """The first of `count` TCP ports in a row that nobody listens on now and that were not handed out before.

    They lie below those that the system gives to outgoing connections, and other processes of these tests get none of
    them while this one lives, also of another run: a broker may be stopped and started again.
    """
    end = min(30_000, int(_EPHEMERAL.read_text().split()[0]) if _EPHEMERAL.exists() else 30_000)
    for _ in range(1_000):
        first = _luck.randrange(end // 2, end - count)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and _are_locked(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first
    raise AssertionError(f"no {count} free ports in a row")


def _are_locked(ports: range) -> bool:
    """One byte of a file for each port, locked while this process lives; not by those that it forks or starts."""
    global _locks
    if _locks is None:
        _locks = os.open(f"/tmp/liftlog-tests-{os.getuid()}.ports", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, len(ports), ports.start)
    except OSError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def nats_server_path() -> str:
    """The nats-server of the wheel, beside the interpreter that runs the tests."""
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "no nats-server: install the extra [broker]"
    return found


class Process:
    """A child process with its output in a file."""

    def __init__(self, command: list[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.log = log
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def kill9(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def terminate(self, timeout_s: float = 60.0) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
        try:
            return self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"did not stop within {timeout_s} s:\n{self.output()[-4000:]}") from None


class NatsServer:
    """One nats-server, JetStream off unless a store folder is given."""

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        jetstream: bool = False,
        config: str = "",
        host: str = "127.0.0.1",
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.host = host
        self.port = port or free_port()
        self.folder = folder
        self.url = f"nats://{host}:{self.port}"
        self._config = folder / "nats.conf"
        lines = [f'listen: "{host}:{self.port}"', "max_payload: 8388608", config]
        if jetstream:
            lines.append(f'jetstream {{ store_dir: "{folder / "jetstream"}" }}')
        self._config.write_text("\n".join(lines) + "\n")
        self.process: Process | None = None

    def start(self) -> NatsServer:
        self.process = Process([nats_server_path(), "-c", str(self._config)], self.folder / "nats.log")
        eventually(self._answers, what="nats-server listens")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.popen.poll() is None, self.process.output()
        try:
            socket.create_connection((self.host, self.port), timeout=10).close()
        except OSError:
            return False
        return True

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process = None

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill9()
        self.process = None


BROKER: Final = ("broker.cli.main", "broker")


class BrokerProcess:
    """One broker process on its own folder and port."""

    def __init__(
        self,
        folder: Path,
        nats: NatsServer | str | None,
        *,
        port: int | None = None,
        env: Mapping[str, str] | None = None,
        command: Sequence[str] = BROKER,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self._command = [*prefix, sys.executable, "-m", *command]
        self.address = f"{host}:{self.port}"
        url = nats.url if isinstance(nats, NatsServer) else nats
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LIFTLOG_")},
            "LIFTLOG_DATA_DIR": str(folder / "data"),
            "LIFTLOG_HTTP_HOST": host,
            "LIFTLOG_HTTP_PORT": str(self.port),
            **({"LIFTLOG_NATS_URLS": url} if url else {"LIFTLOG_INTAKE_ENABLED": "false"}),
            "LIFTLOG_LOG_FORMAT": "console",
            **({} if is_loopback(host) else {"LIFTLOG_INSECURE": "true"}),
            **(env or {}),
        }
        self._need_nats = url is not None
        self.process: Process | None = None
        self.tls: ssl.SSLContext | None = None

    def start(self, *, wait: bool = True) -> BrokerProcess:
        self.process = Process(self._command, self.folder / "broker.log", self.env)
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """AssertionError: it is not ready in time, and killed."""
        try:
            eventually(self.is_ready, timeout_s=120, what="broker ready")
        except AssertionError as error:
            self.kill9()
            raise AssertionError(f"{error}\n{self.output()[-4000:]}") from None

    @property
    def has_ended(self) -> bool:
        """By itself."""
        return self.process is not None and self.process.popen.poll() is not None

    def is_ready(self) -> bool:
        """Whether it says so; AssertionError: it has ended."""
        assert self.process is not None
        assert self.process.popen.poll() is None, self.process.output()[-4000:]
        try:
            return self.get("/readyz") is not None
        except urllib.error.HTTPError as error:
            missing = json.loads(error.read()).get("missing")  # not there: it does not know yet who may ask
            return missing is not None and set(missing) == {"disk"}  # it is up, for somebody to make room
        except (OSError, urllib.error.URLError):
            return False

    def _shown(self) -> dict[str, str]:
        """The headers of its admin, where it has one."""
        file = self.env.get("LIFTLOG_AUTH_ADMIN_TOKEN_FILE")
        return {} if file is None else {"Authorization": f"Bearer {Path(file).read_text().strip()}"}

    @property
    def _url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.address}"

    def get(self, path: str) -> Any:
        request = urllib.request.Request(f"{self._url}{path}", headers=self._shown())
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as answer:
            body = answer.read()
        return json.loads(body) if body[:1] in (b"{", b"[") else body

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **self._shown()}
        request = urllib.request.Request(f"{self._url}{path}", data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60, context=self.tls) as answer:
            raw = answer.read()
        return json.loads(raw) if raw else None

    def metric(self, name: str) -> float:
        """The value of a sample of /metrics, named with its labels; 0: there is none."""
        lines = self.get("/metrics").decode().splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.popen.pid

    def output(self) -> str:
        return (self.folder / "broker.log").read_text(errors="replace")

    def kill9(self) -> None:
        assert self.process is not None
        self.process.kill9()
        self.process = None

    def stop(self) -> int:
        if self.process is None:
            return 0
        process, self.process = self.process, None
        return process.terminate()


@contextmanager
def running(folder: Path, **env: str) -> Iterator[tuple[NatsServer, BrokerProcess]]:
    """A nats-server and a broker, ready; both end with the block."""
    with ExitStack() as stack:
        nats = NatsServer(folder / "nats").start()
        stack.callback(nats.stop)
        broker = BrokerProcess(folder / "broker", nats, env=env).start()
        stack.callback(broker.stop)
        yield nats, broker
