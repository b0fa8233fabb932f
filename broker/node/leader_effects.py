"""What the core of a leader wants done by others: the catalog and its followers. Threads that may wait do it.

W2  An answer to `AskIsr` brings the state that it was judged by, also a refusal (`insync.I1`). Without a state the
    question is asked again at a tick, unless it is under way (`asks.A1`).
W3  A trim is done in the replica's turn. Who asked for one that the disk refuses is told that at once, and that it may
    come to be done (`trims.T4`). It is tried again in the same leadership only. A log that has failed takes no trim.
    Where sinks have staged something meanwhile that is to stay, it is told likewise, and is not tried again.
W4  A request is named by its number and its leader epoch. A log that was made since counts from the beginning: its
    leader would take a refusal of the former one's request for one of its own, and would no longer count whom the
    catalog is about to add.
W5  Nobody is asked in whom the applied catalog holds for dead under this very registration: the controller would
    refuse it, at each try. What was not asked for is refused here. One that is not known yet is asked in.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from broker.api.errors import LiftlogError, NotReady
from broker.metadata.partition import Place, state_from
from broker.node.isr_changes import IsrChanges
from broker.node.partitions.partition import Partition
from broker.node.wiring import Followers, Host
from broker.replication.events import AskIsr, Effect, Send, StartMoved, StepOut, Trim, TrimRefused

log = logging.getLogger(__name__)


class LeaderEffects:
    """Those of one replica. Thread-safe.

    Args:
        changes: Those of all replicas of this broker.
        ask_turn: Lets the replica have a turn.
        step_out: As `PlacedReplica.step_out`.
    """

    __slots__ = (
        "_ask_turn",
        "_at",
        "_changes",
        "_host",
        "_lock",
        "_open",
        "_step_out",
        "_told",
        "_trim_to",
    )

    def __init__(
        self,
        host: Host,
        at: Place,
        changes: IsrChanges,
        *,
        ask_turn: Callable[[], None],
        step_out: Callable[[str], None],
    ) -> None:
        self._host = host
        self._at = at
        self._changes = changes
        self._ask_turn = ask_turn
        self._step_out = step_out
        self._lock = threading.Lock()
        self._open: tuple[Partition, Followers] | None = None
        self._trim_to = (-1, 0)  # leader epoch, log start
        self._told = ""  # why the last try to trim was refused

    def begin(self, partition: Partition, followers: Followers) -> None:
        """The log is open."""
        self._open, self._trim_to = (partition, followers), (-1, 0)

    def end(self) -> None:
        """It is about to be closed."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()

    def do(self, effect: Effect) -> None:
        """Do what the leader's core wants of others."""
        opened = self._open
        match effect:
            case Send():
                if opened is not None:
                    opened[1].send(effect)
            case AskIsr():
                self._ask_isr(effect)
            case StepOut():
                self._step_out("fsync")
            case Trim(start) if opened is not None:
                with self._lock:
                    self._trim_to = max(self._trim_to, (opened[0].leader_epoch, start))
                self._ask_turn()

    def trim(self) -> bool:
        """In a turn: do a trim that is wanted. Returns whether nothing is left to do (W3)."""
        opened, (epoch, start) = self._open, self._trim_to
        if opened is None:
            return True
        partition = opened[0]
        if not partition.leads or epoch != partition.leader_epoch:
            return True
        trimmed = start
        if start > partition.log.checkpoints.kept_start_offset:  # else retention was there first
            try:
                trimmed = partition.replica.trim(start)
                if trimmed < start and (failure := partition.log.state.failure) is not None:
                    raise failure
            except LiftlogError as error:
                if self._told != str(error):  # it is tried three times each second
                    self._told = str(error)
                    log.warning("replica.not_trimmed partition=%s error=%s", partition, error)
                partition.look_at_failure()
                partition.step(TrimRefused(error))
                return False
        self._told = ""
        partition.step(StartMoved(partition.log.checkpoints.kept_start_offset))
        if trimmed < start:  # staged since it was asked for
            self._trim_to = (-1, 0)
            partition.step(TrimRefused(NotReady(f"{partition}: sinks have staged records from offset {trimmed} on")))
        return True

    # -- the catalog -----------------------------------------------------------------------------------------

    def _ask_isr(self, ask: AskIsr) -> None:
        if not self._is_held_for_dead(ask):
            self._changes.ask(self._at, ask, self._isr_said)
            return
        state, opened = self._host.service.catalog.cluster.partitions.get(self._at), self._open
        if state is not None and opened is not None and state.leader_epoch == ask.epoch:  # W5
            opened[0].isr_answered(state, ask.request)

    def _is_held_for_dead(self, ask: AskIsr) -> bool:
        info = None if ask.add is None else self._host.service.catalog.brokers.get(ask.add)
        return info is not None and not info.is_live and info.registration == ask.incarnation[0]

    def _isr_said(self, ask: AskIsr, said: Mapping[str, Any]) -> None:
        """The catalog has answered."""
        if (problem := said.get("error")) is not None:
            change = f"add {ask.add} {ask.incarnation}" if ask.add is not None else f"remove {ask.remove}"
            log.info("replica.isr_refused partition=%s change=%s error=%s", self._at, change, problem.get("detail"))
            said = problem
        opened = self._open
        if opened is not None and isinstance(said.get("state"), dict):  # W2
            state = state_from(said["state"])
            opened[0].isr_answered(state, ask.request if state.leader_epoch == ask.epoch else None)  # W4
