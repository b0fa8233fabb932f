"""A consumer group whose members and brokers are killed and frozen, as often as one likes, judged from outside.

    python -m tests.cluster.group_kills --rounds 100 --seed 7

Three real brokers and four member processes. Records come in each round, and one thing happens: a member or a broker
gets SIGKILL, or SIGSTOP for a while that may outlast a member's timeout and a broker's session. Members say to files of
their own what they have done and committed; `check` looks at those, and at what was appended, and at nothing that
brokers say.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from broker.api.errors import LiftlogError
from broker.client import Client
from tests.support.clusters import RealCluster
from tests.support.processes import eventually, frozen

ROOT: Final = Path(__file__).parents[2]
PARTITIONS: Final = 8
MEMBERS: Final = 4
FROZEN_S: Final = (0.5, 6.0)
"""A member has a timeout of 3 s, a broker a session of 2 s."""
Record = tuple[int, int]
Line = tuple[float, str, int, list[int], str]


class Members:
    """Four places, in each of which one process after the other is a member.

    Attributes:
        stood: Files of those that were frozen.
    """

    def __init__(self, folder: Path, addresses: str) -> None:
        self.folder, self.addresses, self.made = folder, addresses, 0
        self.stood: set[str] = set()
        self._files = [""] * MEMBERS
        self.running = [self._start(place) for place in range(MEMBERS)]

    def _start(self, place: int) -> subprocess.Popen[bytes]:
        self.made += 1
        self._files[place] = f"member{self.made}.json"
        command = [sys.executable, "-m", "tests.support.group_member", self.addresses]
        log = (self.folder / f"member{self.made}.log").open("wb")
        return subprocess.Popen([*command, str(self.folder / self._files[place])], cwd=ROOT, stdout=log, stderr=log)

    def kill(self, place: int) -> None:
        """And start another one."""
        self.running[place].kill()
        self.running[place].wait(30)
        self.running[place] = self._start(place)

    def freeze(self, place: int, seconds: float, meanwhile: Callable[[], None]) -> None:
        self.stood.add(self._files[place])
        with frozen(self.running[place].pid):
            meanwhile()
            time.sleep(seconds)

    def stop(self) -> None:
        for each in self.running:
            each.kill()
            each.wait(30)

    def wait_for_more(self, before: int) -> None:
        """More has been said than so many lines."""
        eventually(lambda: len(self.lines()) > before, timeout_s=90, what="progress")

    def lines(self) -> list[Line]:
        """What all have said, by time. The last line of one that was killed may be torn."""
        found = []
        for file in self.folder.glob("member*.json"):
            whole = file.read_text().rpartition("\n")[0]
            found += [(*json.loads(line), file.name) for line in whole.splitlines()]
        return sorted(found)


def check(lines: list[Line], appended: dict[int, int], *, stood: set[str], is_over: bool) -> int:
    """Each record is committed at most once, and is not done again after that; in the end all are done.

    Args:
        stood: Members that were frozen: each may do the batch in its hands once more than its group counts.
    Returns:
        How many batches were done so, and not committed.
    """
    committed: Counter[Record] = Counter()
    done: set[Record] = set()
    late = 0
    for _, word, partition, offsets, member in lines:
        records = [(partition, offset) for offset in offsets]
        if word == "done":
            again = [record for record in records if record in committed]
            assert not again or member in stood, f"done again after it was committed: {again[:5]}"
            late += bool(again)
            done.update(records)
        elif word == "committed":
            committed.update(records)
    assert not committed or max(committed.values()) == 1
    if is_over:
        assert done == {(partition, offset) for partition, count in appended.items() for offset in range(count)}
    return late


def append(client: Client, appended: dict[int, int], count: int) -> None:
    """So many records to each partition."""
    for partition in range(PARTITIONS):
        rows = [{"value": b"%d" % number} for number in range(count)]
        appended[partition] = client.append("orders", partition, rows, at_least_once=True).next_offset


class Play:
    """One play in a folder: rounds, then the end of all partitions.

    Attributes:
        saw: What was done, and `late`: as `check` returns it.
    """

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None] = lambda line: None) -> None:
        self.saw: Counter[str] = Counter()
        self.cluster = RealCluster(folder, None)
        self.appended: dict[int, int] = {}
        self._folder, self._tell = folder, tell
        self._luck = random.Random(seed)

    def run(self, rounds: int, *, then: Callable[[RealCluster, dict[int, int]], None] = lambda *_: None) -> None:
        """Play it. `then`: called when all is done and the members are gone."""
        members: Members | None = None
        try:
            self.cluster.start()
            with self.cluster.client(deadline_s=60.0) as client:
                client.create_stream("orders", partitions=PARTITIONS, replication_factor=3)
                eventually(lambda: joinable(client), timeout_s=90, what="the feature level of groups")
                append(client, self.appended, 100)
                members = Members(self._folder, ",".join(self.cluster.addresses))
                for turn in range(rounds):
                    said = len(members.lines())
                    append(client, self.appended, 50)
                    members.wait_for_more(said)
                    self._act(turn, members, client)
                    check(members.lines(), self.appended, stood=members.stood, is_over=False)
                eventually(lambda: _is_done(client), timeout_s=120, what="the end of all partitions")
                loads = Counter(each.member for each in client.describe_group("billing").partitions)
                assert sorted(loads.values()) == [PARTITIONS // MEMBERS] * MEMBERS
            members.stop()
            self.saw["late"] = check(members.lines(), self.appended, stood=members.stood, is_over=True)
            then(self.cluster, self.appended)
        finally:
            if members is not None:
                members.stop()
            self.cluster.stop()

    def _act(self, turn: int, members: Members, client: Client) -> None:
        place, broker = self._luck.randrange(MEMBERS), self._luck.choice(sorted(self.cluster.brokers))
        seconds = self._luck.uniform(*FROZEN_S)
        kind = ("kill member", "kill broker", "freeze member", "freeze broker")[turn % 4]
        self.saw[kind] += 1
        self._tell(f"{turn}: {kind} {place if kind.endswith('member') else broker}, {seconds:.1f} s")

        def meanwhile() -> None:
            append(client, self.appended, 50)

        match kind:
            case "kill member":
                members.kill(place)
                meanwhile()
            case "freeze member":
                members.freeze(place, seconds, meanwhile)
            case "kill broker":
                self.cluster.brokers[broker].kill9()
                meanwhile()
                self.cluster.brokers[broker].start(wait=False)
                self.cluster.wait_ready(broker)
            case _:
                with frozen(self.cluster.brokers[broker].pid):
                    meanwhile()
                    time.sleep(seconds)
                self.cluster.wait_ready(broker)


def joinable(client: Client) -> bool:
    """Whether groups can have members."""
    try:
        client.group("other").read("orders").close()
        client.delete_group("other")
    except LiftlogError:
        return False
    return True


def _is_done(client: Client) -> bool:
    said = client.describe_group("billing")
    live = {each.member for each in said.members}
    held = {each.member for each in said.partitions if not each.is_revoked}
    return len(live) == MEMBERS and held == live and all(each.lag == 0 for each in said.partitions)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.group_kills", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="group-kills-") as folder:
        play, began_s = Play(Path(folder), given.seed, lambda line: print(line, flush=True)), time.monotonic()
        play.run(given.rounds)
        told = ", ".join(f"{count} {what}" for what, count in sorted(play.saw.items()))
        records = sum(play.appended.values())
        print(
            f"seed {given.seed}: {told}; {records:,} records, each committed at most once, none passed over;"
            f" {time.monotonic() - began_s:.0f} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
