"""A standalone Spark cluster on one machine: a master and two workers, on 127.0.0.1 and on 127.0.0.2.

Two hosts, because Spark starts a speculative task on another host than the first one only. By hand:

    with Standalone(Path("/tmp/cluster")) as cluster: SparkSession.builder.master(cluster.url) …
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.support.processes import eventually, free_port

HOSTS = ("127.0.0.1", "127.0.0.2")
SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.2",
}
"""The settings of a session on it. A task is speculated on as soon as it takes 1.2 times what half of its stage
took."""


class Standalone:
    """Started by `with`, and ended with all executors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.url = f"spark://{HOSTS[0]}:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        """The process ids of the master and the workers; executors are children of these."""
        return [process.pid for process in self._processes]

    def __enter__(self) -> Standalone:
        host, port = self.url.removeprefix("spark://").split(":")
        self._start("master", "master.Master", "--host", host, "--port", port)
        eventually(lambda: "I have been elected leader" in self._log("master"), timeout_s=120, what="the master leads")
        for host in HOSTS:
            where = ("--host", host, "--cores", "1", "--memory", "600m", "-d", str(self._folder / host), self.url)
            self._start(f"worker-{host}", "worker.Worker", *where)
        for host in HOSTS:
            eventually(
                lambda host=host: "Successfully registered" in self._log(f"worker-{host}"),  # type: ignore[misc]
                timeout_s=120,
                what=f"the worker on {host} registers",
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()  # a worker ends its executors
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(30)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _start(self, name: str, daemon: str, *arguments: str) -> None:
        home = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent))
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{daemon}", "--webui-port", "0"]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
            )
        self._processes.append(process)

    def _log(self, name: str) -> str:
        assert all(process.poll() is None for process in self._processes), f"see {self._folder}"
        return (self._folder / f"{name}.log").read_text(errors="replace")
