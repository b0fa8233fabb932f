"""The way into the group: the first voters form it, others join it, members come back. Before the Raft node runs.

    raft.log there ──────────────► back: ask who is there whether we are still wanted, and go on
    nothing there, we are named ─► forming: an id, on disk ─► all others named have theirs? ─► form
    nothing there, else ─────────► join: ask those named for the group and its voters ─► observer

A voter that has lost its folder must not act as one again: with its empty journal it could make a majority that lacks
what was acknowledged (`node.N3`). An empty folder alone does not tell a first start from a lost one. So:

F1  The id under which a broker forms is random, and on disk (`forming`) before anybody hears it. A broker that forms
    uses the ids that the others told. A folder that was lost has lost the id too: nobody gives a vote to another one.
F2  A journal is made for an id once: when the file says `member`, no journal is ever formed in this folder again. That
    is on disk before the journal acts.
    After a kill between the two, the journal says who the first voters were: the others may still have to form.
F3  The group is formed when all that are named say that they form it, with the same list. If one says that it has
    formed one already, and that group's first voters have our id, we form with that very list: also if its own journal
    is lost. Else we join those who are in it.
F4  If the catalog of that group has seen our id act already, then the file here is older than the journal that is lost
    (a restored backup): we join, under another id.
F5  A group is named by the ids of its first voters. Should two lists have come about (a folder was lost in between),
    they are two groups, an id has a journal of one of them only, and at most one has a majority.
F6  An answer may be a refusal: another cluster, another group, a folder whose broker was removed or has another one by
    now. Then the start fails and says so. Silence refuses nobody: when all brokers start at once, all are silent.
F8  A folder with logs that has not seen the last process of its broker is not the present one (`registering.R2`). Each
    answer says which process that is, so such a folder does not act in the group, as far as anybody answers.
F7  Where a majority is lost for good, an operator founds another group with a catalog that is left (`rescue.py`). A
    broker that joins it has a file that says so: it forms no group, whoever is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.api.errors import CorruptLog, InvalidRequest, NotReady, WrongFolder
from broker.control import membership
from broker.control.identity import Identity
from broker.control.membership import FORMING, JOINING, JOURNAL, MEMBER, Membership, group_of
from broker.control.registering import former, seen_in
from broker.metadata.voting import address
from broker.raft.core import first_voters
from broker.raft.greeting import Hello, Lobby
from broker.raft.journal import ROOM_BYTES, Journal
from broker.raft.node import form, open_journal
from broker.storage.disk import FixedDisk
from broker.storage.folder import STREAMS_FOLDER

log = logging.getLogger(__name__)

ASK_S: Final = 1.0
PAUSE_S: Final = 0.3
TELL_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Entered:
    """The way is found: a journal to act under, and voters to hear beside those that it names."""

    journal: Journal
    member: Membership
    seeds: tuple[str, ...]


class Entrance:
    """See the module. `enter` may wait for others without end; `stop` ends that.

    Args:
        tell: Told from time to time whom it waits for, in words.
    """

    def __init__(
        self,
        disk: FixedDisk,
        folder: str,
        identity: Identity,
        *,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._disk, self._folder, self._me = disk, folder, identity
        self._clock = clock
        self._tell = tell
        self._told_s = clock() - TELL_EVERY_S / 2
        self._is_stopping = False
        self._path = f"{folder}/{JOURNAL}"
        self._own = Membership(state=FORMING, node_id="")
        self._silent: dict[str, str] = {}

    def stop(self) -> None:
        """Wait for nobody any more."""
        self._is_stopping = True

    def enter(self) -> Entered:
        """Find the way in.

        Raises:
            InvalidRequest: the cluster refuses this broker, or its configuration differs from that of others.
            WrongFolder: a single broker's folder, or one whose state cannot be read. PortInUse.
            NotReady: stopped meanwhile. StorageFailed, DiskFull: the disk refuses.
        """
        has_journal = self._disk.exists(self._path)
        try:
            found = membership.load(self._disk, self._folder)
        except CorruptLog as error:
            if not has_journal:
                raise WrongFolder(
                    f"{error}, and there is no {JOURNAL}: remove {membership.FILE}, and this broker joins as a new one",
                    path=self._folder,
                ) from error
            found = None
        if has_journal:
            return self._back(found)
        if found is None and self._disk.exists(f"{self._folder}/catalog.log"):
            raise WrongFolder(
                f"data folder {self._folder} is that of a single broker: it cannot become one of a cluster's."
                " Give this broker an empty folder, or leave out cluster.voters",
                path=self._folder,
            )
        if (found is None or found.state == FORMING) and self._me.is_named:
            return self._form(found)
        return self._join(found)

    # -- back ---------------------------------------------------------------------------------------------------

    def _back(self, found: Membership | None) -> Entered:
        try:
            journal = Journal.open(self._disk, self._path, room_bytes=ROOM_BYTES)
        except CorruptLog as error:
            log.error("cluster.journal_damaged path=%s error=%s", self._path, error)
            return self._join(found)
        group, node_id = journal.base.cluster_id, journal.base.node_id
        cluster_id = group.rpartition("/")[0]
        if cluster_id != self._me.cluster_id:
            journal.close()
            raise WrongFolder(
                f"data folder {self._folder} is of cluster {cluster_id}, not {self._me.cluster_id} (cluster.id)",
                path=self._folder,
                found=cluster_id,
                expected=self._me.cluster_id,
            )
        if address(node_id) != self._me.address:
            journal.close()
            raise InvalidRequest(
                f"this broker's Raft address is {address(node_id)} by its journal, and {self._me.address} by its"
                f" configuration. To move it, stop it and delete {self._path}: it comes back under another id",
                key="raft.advertised",
            )
        known = () if found is None or found.group != group else found.first  # not of a group that was given up
        first = known or first_voters(journal.entries)
        own = Membership(state=MEMBER, node_id=node_id, group=group, first=first)
        if own != found:
            self._keep(own)  # F2
        self._own = own
        try:
            with self._lobby(None) as lobby:
                while True:
                    answers = self._answers(self._ask(lobby))  # F6
                    self._check_present(answers)
                    seeds = {voter for answer in answers.values() for voter in _texts(answer.get("voters"))}
                    own = self._completed(own, answers)
                    if seeds or journal.base.voters or len(journal.entries) > 1:
                        return Entered(journal, own, tuple(sorted(seeds - {node_id})))
                    self._wait(lobby, "it has joined and heard of no voter yet")
        except BaseException:
            journal.close()
            raise

    def _check_present(self, answers: Mapping[str, dict[str, Any]]) -> None:
        """F8."""
        if self._disk.exists(f"{self._folder}/{STREAMS_FOLDER}"):
            seen = seen_in(self._disk, self._folder)
            said = [(answer.get("process"), answer.get("registration")) for answer in answers.values()]
            last = [(name, number) for name, number in said if isinstance(name, str) and isinstance(number, int)]
            if seen is not None and any(seen.lacks(*each) for each in last):
                raise former(self._me.broker_id, self._folder)

    def _completed(self, own: Membership, answers: Mapping[str, dict[str, Any]]) -> Membership:
        """With the first voters, which a kill in the middle of joining may have cost: others may still ask for them."""
        firsts = [_texts(answer.get("first")) for answer in answers.values() if answer.get("group") == own.group]
        if not own.first and any(firsts):
            own = replace(own, first=next(filter(None, firsts)))
            self._keep(own)
        return own

    # -- forming ------------------------------------------------------------------------------------------------

    def _form(self, found: Membership | None) -> Entered:
        if found is None:
            found = Membership(state=FORMING, node_id=self._me.new_id())
            self._keep(found)  # F1
        self._own = found
        with self._lobby(self._me.bind) as lobby:
            while True:
                answers = self._answers(self._ask(lobby))
                members = [a for a in answers.values() if a.get("state") == MEMBER and _texts(a.get("first"))]
                ours = [first for answer in answers.values() if found.node_id in (first := _texts(answer.get("first")))]
                if ours and not any(answer.get("has_acted") for answer in members):  # F3
                    return self._formed(found, ours[0])
                if members:
                    lobby.close()
                    return self._join()  # F4
                ids = {self._me.broker_id: found.node_id}
                others = {at: a for at, a in answers.items() if a.get("state") == FORMING}
                ids |= {self._me.others[at]: str(answer.get("node_id")) for at, answer in others.items()}
                if len(ids) == len(self._me.named):
                    return self._formed(found, tuple(ids[broker] for broker, _ in self._me.named))
                missing = sorted(at for at in self._me.others if at not in answers)
                self._wait(lobby, f"the group is formed when all of its first voters are there; missing: {missing}")

    def _formed(self, found: Membership, first: tuple[str, ...]) -> Entered:
        group = group_of(self._me.cluster_id, first)
        form(self._disk, self._path, node_id=found.node_id, voters=first, cluster_id=group).close()
        own = replace(found, state=MEMBER, group=group, first=first)
        self._keep(own)  # F2
        log.info("cluster.formed id=%s group=%s voters=%s", own.node_id, group, ",".join(first))
        return Entered(Journal.open(self._disk, self._path, room_bytes=ROOM_BYTES), own, ())

    # -- joining ------------------------------------------------------------------------------------------------

    def _join(self, found: Membership | None = None) -> Entered:
        self._own = Membership(state=JOINING, node_id="")
        if found is not None and found.state == MEMBER:
            self._own = replace(found, state=JOINING, node_id="")  # F3: somebody may still have to form that group
        with self._lobby(self._me.bind) as lobby:
            while True:
                members = {at: a for at, a in self._answers(self._ask(lobby)).items() if a.get("state") == MEMBER}
                groups = {str(answer.get("group")) for answer in members.values()}
                if len(groups) > 1:
                    raise InvalidRequest(
                        f"the brokers of cluster.voters are in different groups: "
                        f"{ {at: answer.get('group') for at, answer in members.items()} }",
                        key="cluster.voters",
                    )
                if members:
                    break
                self._wait(lobby, f"to join, one of these has to be in the group: {sorted(self._me.others)}")
        [group] = groups
        seeds = tuple(sorted({voter for answer in members.values() for voter in _texts(answer.get("voters"))}))
        first = next(iter(_texts(answer.get("first")) for answer in members.values()))
        journal, _ = open_journal(
            self._disk, self._path, new_id=self._me.new_id, cluster_id=group, room_bytes=ROOM_BYTES
        )
        own = Membership(state=MEMBER, node_id=journal.base.node_id, group=group, first=first)
        self._keep(own)
        log.info("cluster.joined id=%s group=%s seeds=%s", own.node_id, group, ",".join(seeds))
        return Entered(journal, own, seeds)

    # -- asking and answering -----------------------------------------------------------------------------------

    def _keep(self, own: Membership) -> None:
        membership.store(self._disk, self._folder, own)
        self._own = own

    def _lobby(self, bind: str | None) -> Lobby:
        return Lobby(bind=bind, secret=self._me.secret, answer=self._answer, clock=self._clock, tls=self._me.tls)

    def _ask(self, lobby: Lobby) -> dict[str, dict[str, Any] | str]:
        hello = {
            "cluster": self._me.cluster_id,
            "broker": self._me.broker_id,
            "node_id": self._own.node_id,
            "group": self._own.group,
            "named": [list(each) for each in self._me.named] if self._own.state == FORMING else [],
            "is_forming": self._own.state == FORMING and bool(self._own.node_id),
        }
        return lobby.ask(self._me.others, hello, timeout_s=ASK_S)

    def _answers(self, asked: Mapping[str, dict[str, Any] | str]) -> dict[str, dict[str, Any]]:
        """The answers, by address. Raises InvalidRequest if somebody refuses (F6)."""
        answers = {}
        self._silent = {}
        for at, answer in asked.items():
            if isinstance(answer, str):
                self._silent[at] = answer
            elif answer.get("refusal"):
                raise InvalidRequest(f"{at} refuses this broker: {answer['refusal']}", address=at)
            else:
                answers[at] = answer
        return answers

    def _answer(self, hello: Hello) -> Hello:
        """While this broker forms."""
        return answer_to(hello, self._me, self._own)

    def _wait(self, lobby: Lobby, what: str) -> None:
        if self._is_stopping:
            raise NotReady("stopped before the cluster was there")
        if self._clock() - self._told_s >= TELL_EVERY_S:
            self._told_s = self._clock()
            log.warning("cluster.waiting %s silent=%s", what, self._silent)
            self._tell(f"{what} ({self._silent})")
        lobby.wait(PAUSE_S)


def answer_to(
    hello: Hello,
    me: Identity,
    own: Membership,
    *,
    voters: tuple[str, ...] = (),
    removed: Mapping[str, str] | None = None,
    acted: Mapping[str, str] | None = None,
    processes: Mapping[str, tuple[str, int]] | None = None,
) -> dict[str, Any]:
    """The answer of a broker to one that comes.

    Args:
        voters: As the group has them now. removed: Ids of folders that are over, with their brokers' names.
        acted: The id under which each broker has registered last, by its name. processes: Its process, and the number
            of that registration.
    """
    refusal = None
    with suppress(TypeError):
        node_id, broker, group = (hello.get(key) for key in ("node_id", "broker", "group"))
        named = [list(each) for each in me.named]
        if hello.get("cluster") != me.cluster_id:
            refusal = f"this is cluster {me.cluster_id}, not {hello.get('cluster')} (cluster.id)"
        elif group and own.group and group != own.group:
            refusal = (
                f"its folder is of the group {group}, broker {me.broker_id} is in {own.group}. If `liftlog cluster"
                " rescue begin` made one of the two, stop the broker of the other one, and run `liftlog cluster rescue"
                " join --data` on its folder: it keeps its records. Else give it an empty folder"
            )
        elif node_id in (removed or {}):
            refusal = (
                f"broker {(removed or {})[str(node_id)]} was removed from the cluster, or has another folder by now,"
                " and this is its former one"
            )
        elif own.state == FORMING and hello.get("is_forming") and hello.get("named") != named:
            refusal = f"cluster.voters is {hello.get('named')} there and {named} here: it has to be the same everywhere"
        elif broker == me.broker_id:
            refusal = f"this is broker {broker} too: two brokers have one name"
        process, registration = (processes or {}).get(str(broker), ("", 0))
        has_acted = bool(node_id) and (acted or {}).get(str(broker)) == node_id
        return {
            "type": "hello",
            "refusal": refusal,
            "state": own.state,
            "node_id": own.node_id,
            "group": own.group,
            "first": list(own.first),
            "voters": list(voters),
            "has_acted": has_acted,
            "process": process,
            "registration": registration,
        }
    return {"type": "hello", "refusal": "a hello that cannot be read"}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()
