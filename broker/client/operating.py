"""The calls of a client about the cluster: who keeps what, and what an operator changes of that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from broker.api.errors import InvalidRequest
from broker.api.placements import (
    ClusterDescription,
    Drained,
    Elected,
    GivenUp,
    Placement,
    Placements,
    RescueEnded,
    RescueState,
)
from broker.client.http.calls import Calls, path, understand


class ClusterCalls:
    """A part of `Client`, which has the rest."""

    @property
    def _calls(self) -> Calls:
        raise NotImplementedError

    def cluster(self) -> ClusterDescription:
        """The cluster and its brokers."""
        return understand(ClusterDescription, self._calls.json("GET", path("cluster")), where="describing the cluster")

    def placements(self, stream: str | None = None) -> list[Placement]:
        """The replicas, leader and followers of each partition, internal streams included, as the broker that answers
        knows."""
        value = self._calls.json("GET", path("cluster", "partitions"), query={"stream": stream})
        return list(understand(Placements, value, where="listing partitions").partitions)

    def reassign(
        self,
        stream: str,
        replicas: Iterable[str],
        *,
        partition: int | None = None,
        min_insync_replicas: int | None = None,
    ) -> list[Placement]:
        """Have other brokers keep a partition. Returns at once: they have moved when `target` is None.

        Args:
            replicas: Ids of brokers, the preferred leader first. The last call holds; so a move is taken back by naming
                the former ones.
            partition: None: all; each begins the list one broker later, so that they lead by turns.
        Raises:
            UnknownStream, UnknownPartition: not there.
            InvalidRequest: an unknown broker, or one that does not live and has no copy.
        """
        body: dict[str, Any] = {"stream": stream, "replicas": list(replicas)}
        body |= _given(partition=partition, min_insync_replicas=min_insync_replicas)
        value = self._calls.json("POST", path("cluster", "reassign"), body)
        return list(understand(Placements, value, where="reassigning").partitions)

    def elect_preferred(self, stream: str | None = None, partition: int | None = None) -> Elected:
        """Have the preferred replicas lead, where they are in sync. None: of all."""
        value = self._calls.json("POST", path("cluster", "elect"), _given(stream=stream, partition=partition))
        return understand(Elected, value, where="electing")

    def elect_unclean(
        self, stream: str, partition: int, *, broker: str | None = None, accept_loss: bool = False
    ) -> Placement:
        """Have a replica lead that may lack committed records, where nobody else can. They are lost for good then.

        Args:
            broker: None: the one whose copy is the longest.
            accept_loss: False: it is refused, and the error says what may be lost: `chosen`, `copies`, `may_have_more`.
        Raises:
            InvalidRequest: somebody leads it, or may.
            NotReady: no replica is there.
        """
        body = {"stream": stream, "partition": partition, "unclean": True, "accept_loss": accept_loss}
        value = self._calls.json("POST", path("cluster", "elect"), body | _given(broker=broker))
        return understand(Elected, value, where="electing").moved[0]

    def accept_loss(self, stream: str, partition: int, *, accept_loss: bool = False) -> GivenUp:
        """Let what is damaged be empty, where nobody else has it, so that replicas can follow past it.

        Args:
            accept_loss: False: it is refused, and the error says what is lost: `ranges`, `may_have_it`.
        Raises:
            InvalidRequest: nothing is damaged, or another replica has it.
            NotReady: nobody leads, or a replica has not told yet what it has.
        """
        body = {"stream": stream, "partition": partition, "accept_loss": accept_loss}
        return understand(GivenUp, self._calls.json("POST", path("cluster", "accept-loss"), body), where="giving up")

    def drain(self, broker: str, *, fewer_replicas: bool = False) -> Drained:
        """Have other brokers keep what a broker keeps. Returns at once: call again until nothing is `moving`.

        Raises:
            InvalidRequest: there are too few others, unless `fewer_replicas`; or no broker of this name is registered.
        """
        value = self._calls.json(
            "POST", path("cluster", "brokers", broker, "drain"), {"fewer_replicas": fewer_replicas}
        )
        return understand(Drained, value, where="draining")

    def remove_broker(self, broker: str) -> None:
        """Give up a broker for good: its vote goes, and its data folder is refused.

        Raises:
            InvalidRequest: it lives, keeps partitions (`keeps`), or there is none of this name.
        """
        try:
            self._calls.json("DELETE", path("cluster", "brokers", broker))
        except InvalidRequest as error:
            is_gone = error.fields.get("sent") and all(each.id != broker for each in self.cluster().brokers)
            if not is_gone:  # else an earlier try, whose answer was lost, has removed it
                raise

    def rescue(self) -> RescueState:
        """Whether a rescue of the catalog is under way, and who is missing in it."""
        return understand(RescueState, self._calls.json("GET", path("cluster", "rescue")), where="asking for a rescue")

    def excuse(
        self, broker: str, stream: str | None = None, partition: int | None = None, *, accept_loss: bool = False
    ) -> RescueState:
        """In a rescue, give up what a broker may have had: all, or of one stream or partition.

        Args:
            accept_loss: False: it is refused.
        Raises:
            InvalidRequest: none is under way, or the broker lives and has yet to report.
        """
        body = {"broker": broker, "accept_loss": accept_loss, **_given(stream=stream, partition=partition)}
        return understand(
            RescueState, self._calls.json("POST", path("cluster", "rescue", "excuse"), body), where="excusing"
        )

    def end_rescue(self, brokers: Iterable[str]) -> RescueEnded:
        """End a rescue: in each partition the most complete log leads.

        Args:
            brokers: All that there were, also those that were excused: the catalog may have lost one.
        Raises:
            InvalidRequest: some have neither reported nor been excused, or no rescue is under way.
        """
        value = self._calls.json("POST", path("cluster", "rescue", "end"), {"brokers": list(brokers)})
        return understand(RescueEnded, value, where="ending a rescue")


def _given(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
