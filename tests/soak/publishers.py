"""All publishers over NATS, in one thread with a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from tests.soak.chain import STREAM, ChainPublisher
from tests.soak.ledger import Ledger
from tests.soak.publisher import BURSTS, BurstPublisher, JetStreamPublisher, RawPublisher, Writer


class Publishers:
    """All of them, in a thread with a loop of its own."""

    def __init__(self, port: int, ledger: Ledger, streams: Sequence[str], seed: str, effort: float) -> None:
        pause_s = 0.02 / effort
        streams = [stream for stream in streams if stream != STREAM]
        self.writers: list[Writer] = [
            ChainPublisher("c0", ledger, [STREAM], seed, pause_s * 4),
            JetStreamPublisher("j0", ledger, streams, seed, pause_s * 4),
            JetStreamPublisher("j1", ledger, streams[:1], seed, pause_s * 8),
            RawPublisher("r0", ledger, streams, seed, pause_s / 4),
            BurstPublisher("b0", ledger, BURSTS, seed, pause_s * 2),
        ]
        self._port = port
        self._ledger = ledger
        self._thread = threading.Thread(target=self._run, name="publishers", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        async def everyone() -> None:
            url = f"nats://127.0.0.1:{self._port}"
            runs = []
            for writer in self.writers:
                if isinstance(writer, JetStreamPublisher):
                    runs.append(writer.run(url, 16))
                elif isinstance(writer, ChainPublisher):
                    runs.append(writer.run(url))
                elif isinstance(writer, RawPublisher):
                    runs.append(writer.run(self._port, 400 if isinstance(writer, BurstPublisher) else 64))
            await asyncio.gather(*runs)

        try:
            asyncio.run(everyone())
        except Exception as error:
            self._ledger.violate(f"a publisher ended: {error!r}")

    def stop(self) -> None:
        """Publish nothing new, wait until all is acked or given up."""
        for writer in self.writers:
            writer.stop.set()
        self._thread.join(150)
        if self._thread.is_alive():
            self._ledger.violate("publishers do not come to an end")
