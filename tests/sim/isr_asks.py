"""Changes of in-sync replicas as a broker asks the catalog for them: those of many partitions by one command, where the
catalog has the level for that. The driver is `broker/node/isr_changes.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.metadata.catalog import SINCE
from broker.replication.events import AskIsr
from tests.sim.metadata import name_of, place_of

if TYPE_CHECKING:
    from tests.sim.broker import Broker

IN_DOUBT_MS: Final = 600
"""After so long nobody minds the answer, and the next command goes."""
Told = Callable[[AskIsr, Mapping[str, Any]], None]


class IsrAsks:
    """Those of one process."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[str, tuple[AskIsr, Told]] = {}
        self._number = 0
        self._is_out = False

    def ask(self, name: str, ask: AskIsr, told: Told) -> None:
        """Have `told` called with the answer, or never."""
        if self._broker.catalog.cluster.feature_level >= SINCE["alter_isrs"]:
            self._waiting[name] = ask, told
            self._send()
        else:
            self._ask_one(name, ask, told)

    def _ask_one(self, name: str, ask: AskIsr, told: Told) -> None:
        (stream, number), broker = place_of(name), self._broker
        change = {"add": [ask.add, *ask.incarnation]} if ask.add else {"remove": ask.remove}
        command = {
            "kind": "alter_isr",
            "broker_id": broker.name,
            "stream": stream,
            "partition": number,
            "leader_epoch": ask.epoch,
            "partition_epoch": ask.partition_epoch,
            **change,
        }
        broker.submit(command, lambda result, _: broker.after(0, told, ask, result.get("ok", result)))

    def _send(self) -> None:
        """All that wait, unless a command is under way."""
        if self._is_out or not self._waiting:
            return
        asked, self._waiting, broker = self._waiting, {}, self._broker
        self._is_out = True
        self._number += 1
        number = self._number
        rows = [(ask, [*place_of(name), ask.epoch, ask.partition_epoch]) for name, (ask, _) in asked.items()]
        command = {
            "kind": "alter_isrs",
            "broker_id": broker.name,
            "add": [[*row, ask.add, *ask.incarnation] for ask, row in rows if ask.add],
            "remove": [[*row, ask.remove] for ask, row in rows if not ask.add],
        }
        broker.world.saw("ISR changes of several partitions" if len(rows) > 1 else "ISR change by a list")
        broker.submit(command, lambda result, _: broker.after(0, self._answered, number, asked, result))
        broker.after(IN_DOUBT_MS, self._answered, number, asked, {})

    def _answered(self, number: int, asked: dict[str, tuple[AskIsr, Told]], result: dict[str, Any]) -> None:
        if number != self._number or not self._is_out:
            return
        self._is_out = False
        of_all = result if "error" in result else {}
        said = result.get("ok") or result.get("error", {})
        answers = {name_of((stream, at)): one for stream, at, one in said.get("answers", ())}
        for name, (ask, told) in asked.items():
            told(ask, answers.get(name, of_all))
        self._send()
