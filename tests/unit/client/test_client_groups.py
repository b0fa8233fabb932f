"""Members of a consumer group in Python: each record once where its batch was committed; no error is passed over."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from broker.api.answers import Resolved
from broker.api.errors import (
    GroupFenced,
    GroupInUse,
    InvalidRequest,
    NotReady,
    OffsetOutOfRange,
    UnknownGroup,
    UnknownMember,
    UnknownStream,
)
from broker.api.group_answers import GroupDescription
from broker.api.validation import build
from broker.client import Client, connect
from broker.client.group import GroupReader, _Life
from broker.client.group_start import GroupStart
from broker.client.positions import Position
from broker.client.reading.fetch import PartitionFetch
from broker.groups.fencing import CommitVerdict, OffsetAndEpoch
from broker.serving.contract.schemas import GroupPoll
from tests.support.processes import eventually
from tests.unit.client.rawserver import RawServer, Reply, Request
from tests.unit.serving.arrow import values
from tests.unit.serving.server import Server


class Orders:
    """A stream with 25 records in each of four partitions, and a group of the same name."""

    def __init__(self, client: Client, name: str) -> None:
        self.client, self.name = client, name
        for number in range(4):
            client.append(name, number, values(25))

    def read(self, *, start: Any = "earliest", **more: Any) -> GroupReader:
        return self.client.group(self.name, **more).read(self.name, start=start)

    def append(self, partition: int, count: int) -> None:
        self.client.append(self.name, partition, values(count))

    def described(self) -> GroupDescription:
        return self.client.describe_group(self.name)

    def reset(self, to: Any) -> None:
        self.client.reset_group(self.name, self.name, to)


@pytest.fixture
def orders(client: Client, new_stream: Callable[..., str]) -> Orders:
    return Orders(client, new_stream(partitions=4))


def read(reader: GroupReader, count: int) -> Counter[tuple[int, int]]:
    """So many records, or more: how often each was handed out."""
    found: Counter[tuple[int, int]] = Counter()
    while sum(found.values()) < count:
        rows = next(reader)
        assert reader.at is not None
        found.update((reader.at[1], offset) for offset in rows.column("offset").to_pylist())
    return found


def test_a_batch_is_committed_when_the_next_one_is_asked_for(orders: Orders) -> None:
    with orders.read() as reader:
        assert len(reader.partitions) == 0, "nothing has begun"
        assert read(reader, 100) == Counter((number, offset) for number in range(4) for offset in range(25))
        assert [each.lag for each in orders.described().partitions].count(0) == 3
        reader.commit()
    said = orders.described()
    assert (said.lag, said.members) == (0, ()), "a block that ends leaves"
    assert (orders.name, 0) in [(each.group, each.members) for each in orders.client.groups()]


def test_a_block_that_ends_says_nothing_of_the_batch_at_hand(orders: Orders) -> None:
    """It may be left before the work was begun, or after an error was logged."""
    with orders.read() as reader:
        for _ in reader:
            break  # somebody asked to stop
    with orders.read() as reader:
        try:
            next(reader)
            raise ValueError("this record")
        except ValueError:
            pass
    assert [each.offset for each in orders.described().partitions] == [0] * 4
    with orders.read() as reader:
        assert max(read(reader, 100).values()) == 1


def test_what_a_signal_kept_from_being_handed_out_is_not_passed_over(orders: Orders) -> None:
    """Who interrupts a notebook may go on with the same reader."""

    def interrupted(fetch: PartitionFetch) -> Iterator[pa.RecordBatch]:
        fetch.position = 25
        raise KeyboardInterrupt
        yield

    with orders.read() as reader:
        next(reader)
        fetch = reader._held[orders.name, 1].fetch
        with pytest.raises(KeyboardInterrupt), patch.object(fetch, "answer", lambda _: interrupted(fetch)):
            read(reader, 100)
        found = read(reader, 50)
        reader.commit()
        assert orders.described().partitions[1].offset == sum(number == 1 for number, _ in found)


@pytest.mark.process
def test_a_child_reads_and_commits_nothing_and_its_end_is_not_the_members(orders: Orders, server: Server) -> None:
    """M6."""
    with orders.read() as reader:
        rows = next(reader)
        session = server.backend.groups.get(orders.name).members[reader._life.member].session
        child = os.fork()
        if not child:  # pragma: no cover
            code = 1
            with suppress(BaseException):
                try:
                    next(reader)
                except InvalidRequest:
                    reader.close()
                    code = 0
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert server.backend.groups.get(orders.name).members[reader._life.member].session == session
        assert [each.offset for each in orders.described().partitions] == [0] * 4
        reader.commit()
        assert [each.offset for each in orders.described().partitions] == [rows.num_rows, 0, 0, 0]


def test_a_batch_whose_work_failed_is_read_again(orders: Orders) -> None:
    def work() -> None:
        with orders.read() as reader:
            for _ in reader:
                raise ValueError("this record")

    with pytest.raises(ValueError, match="this record"):
        work()
    with orders.read() as reader:
        assert max(read(reader, 100).values()) == 1


def test_two_members_share_and_one_takes_over(orders: Orders) -> None:
    first = orders.read()
    found = read(first, 25)
    second = orders.read()
    turn = threading.Thread(target=lambda: found.update(read(first, 25)))
    turn.start()
    other = read(second, 25)
    turn.join(30)
    assert not found & other, "no record at both"
    first.commit()
    first.close()
    second.commit()
    rest = 100 - sum(found.values()) - sum(other.values())
    other.update(read(second, rest))
    assert found + other == Counter((number, offset) for number in range(4) for offset in range(25))
    second.close()


def test_who_was_taken_for_dead_joins_again_and_commits_nothing_of_before(orders: Orders, server: Server) -> None:
    with orders.read() as reader:
        read(reader, 1)
        session = server.backend.groups.get(orders.name).members[reader._life.member].session
        ended = {"kind": "end_members", "name": orders.name, "members": {reader._life.member: session}}
        server.call(_execute(server, ended))
        other = orders.read()
        again = read(other, 100)
        other.commit()
        with pytest.raises(GroupFenced):
            reader.commit()
        other.close()
        assert again == Counter((number, offset) for number in range(4) for offset in range(25))
    assert reader.fenced == 1


def test_who_joins_again_reads_on_though_a_stream_was_deleted_and_that_one_when_it_is_there_again(
    orders: Orders, server: Server, new_stream: Callable[..., str]
) -> None:
    """M4. A stream that is deleted is no error for those who were not taken for dead."""
    client, other = orders.client, new_stream(partitions=1)
    with client.group(orders.name, timeout_s=2).read(orders.name, other) as reader:
        read(reader, 100)
        reader.commit()
        for gone in ([other], [other, orders.name]):
            member = reader._life.member
            for each in gone:
                client.delete_stream(each, missing_ok=True)
            session = server.backend.groups.get(orders.name).members[member].session
            server.call(_execute(server, {"kind": "end_members", "name": orders.name, "members": {member: session}}))
            if len(gone) == 1:
                eventually(lambda: reader._life.share() is None, what="it to hear that")  # else it reads on as before
                orders.append(2, 1)
                assert read(reader, 1) == Counter({(2, 25): 1})
                assert server.backend.groups.get(orders.name).members[member].streams == (orders.name,)
            else:
                client.create_stream(orders.name, partitions=4)
                orders.append(3, 1)
                assert read(reader, 1) == Counter({(3, 0): 1})
            reader.commit()
        client.create_stream(other, partitions=1)
        client.append(other, 0, values(1))
        assert read(reader, 1) == Counter({(0, 0): 1})
        assert reader.at == (other, 0)
    with pytest.raises(UnknownStream):
        client.group(orders.name).read(orders.name, "none")


def test_what_a_member_hears_of_a_stream_that_is_there_again_is_the_newest(
    orders: Orders, server: Server, new_stream: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M4. Its process may have heard later news meanwhile, and is told that there are some."""
    client, other = orders.client, new_stream(partitions=1)
    monkeypatch.setattr(_Life, "_work", lambda self: None)
    with client.group(orders.name).read(orders.name, other) as reader:
        life = reader._life
        client.delete_stream(other)
        share = life.share()
        assert share is not None
        ended = {"kind": "end_members", "name": orders.name, "members": {life.member: share.session}}
        server.call(_execute(server, ended))
        life._poll(share)
        life.join()
        client.create_stream(other, partitions=1)
        life.news.clear()
        life._complete()
        assert life.news.is_set()
        real, versions = life._call, list[int]()

        def late(target: str, body: Any, **more: Any) -> Any:
            told = real(target, body, **more)
            if target == "members":
                server.call(_execute(server, {"kind": "join_group", "name": orders.name, **dict(body, member="b")}))
                now = real(f"members/{life.member}/poll", {"session": told.session, "version": 0, "wait_ms": 0})
                versions.extend((told.version, now.version))
                life._share = now
            return told

        monkeypatch.setattr(life, "_call", late)
        life._complete()
        share = life.share()
        assert share is not None
        assert versions[0] < versions[1] == share.version


async def _execute(server: Server, command: dict[str, object]) -> None:
    await server.backend.change_group(str(command.pop("kind")), command)


def test_a_grant_that_the_log_has_seen_later_ones_of_is_given_back_for_another(orders: Orders, server: Server) -> None:
    """As after a copy of the catalog was put back: nobody else is granted the partition, so nobody would read it."""
    with orders.read() as reader:
        read(reader, 100)
        reader.commit()
    with orders.read() as reader:
        backend, epoch, later = (
            server.backend,
            server.backend.groups.last + 1,
            (CommitVerdict.APPEND, OffsetAndEpoch(20)),
        )
        at = next(each for each in backend.offsets.group_offsets(orders.name) if each[1] == 2)
        server.call(backend.offsets.move_group(orders.name, orders.name, at, epoch, lambda _: later))
        rows = next(reader)
        assert (reader.at, rows.column("offset")[0].as_py()) == ((orders.name, 2), 20)
        assert server.backend.groups.get(orders.name).grants[orders.name, 2].epoch >= epoch
        assert len(reader.partitions) == 4


def test_an_offset_that_is_gone_is_an_error_and_no_jump(orders: Orders) -> None:
    with orders.read() as reader:
        read(reader, 100)
    orders.reset(3)
    orders.client.trim(orders.name, before=10)
    with pytest.raises(OffsetOutOfRange), orders.read() as reader:
        next(reader)
    assert {each.offset for each in orders.described().partitions} == {3}
    orders.reset("earliest")
    with orders.read() as reader:
        assert sum(read(reader, 60).values()) == 60


@pytest.mark.parametrize("is_known", [False, True])
def test_what_others_have_done_and_trimmed_is_no_error_of_who_was_taken_for_dead(
    orders: Orders, server: Server, is_known: bool
) -> None:
    """M3. It stood still, and asks for what comes next before it has heard that others have done that."""
    with orders.read() as reader:
        read(reader, 100)
        reader.commit()
        session = server.backend.groups.get(orders.name).members[reader._life.member].session
        share = reader._life.share()
        assert share is not None
        ended = {"kind": "end_members", "name": orders.name, "members": {reader._life.member: session}}
        server.call(_execute(server, ended))
        for number in range(4):
            orders.append(number, 5)
        with orders.read() as other:
            read(other, 20)
            other.commit()
            orders.client.trim(orders.name, before=30)
        orders.append(2, 1)
        if not is_known:  # its thread has not come to poll
            reader._life._share = share
            reader._life.news.clear()
        assert read(reader, 1) == Counter({(2, 30): 1})


@pytest.mark.parametrize("is_last", [False, True])
def test_what_a_disk_has_lost_is_told_before_it_is_passed_over(orders: Orders, server: Server, is_last: bool) -> None:
    """By a member, once; what is behind it is read then, and nothing of that is committed before."""
    orders.append(1, 10)
    if not is_last:
        orders.append(1, 10)
    damage(server.backend.partition(orders.name, 1).log.reader.read(25, end=35))
    found = Counter[tuple[int, int]]()
    with orders.read() as reader:
        with pytest.raises(OffsetOutOfRange, match="from offset 25 to 34") as told:
            read_on(reader, found)
        assert (told.value.lost, told.value.partition, told.value.offset) == ([25, 35], 1, 25)
        reader.commit()
        assert orders.described().partitions[1].offset == 25

        def goes_on() -> bool:
            orders.append(0, 1)
            found.update(read(reader, 1))
            reader.commit()
            return orders.described().partitions[1].lag == 0

        eventually(goes_on, what="the end of the partition")
    assert max(found.values()) == 1
    assert {offset for number, offset in found if number == 1} == {*range(25), *(() if is_last else range(35, 45))}


def read_on(reader: GroupReader, found: Counter[tuple[int, int]]) -> None:
    """For ever."""
    while True:
        found.update(read(reader, 1))


def damage(plan: Any) -> None:
    """Change a byte of what a read would hand out."""
    (stored,) = plan.ranges
    plan.close()
    with open(stored.path, "r+b") as file:
        file.seek(stored.position + stored.length - 100)
        [byte] = file.read(1)
        file.seek(stored.position + stored.length - 100)
        file.write(bytes([byte ^ 0xFF]))


def test_a_group_may_begin_with_what_comes_from_now_on(orders: Orders) -> None:
    with orders.read(start="latest") as reader:
        orders.append(1, 3)
        assert read(reader, 3) == Counter({(1, 25): 1, (1, 26): 1, (1, 27): 1})
        reader.commit()
        orders.append(2, 1)
    with orders.read(start="latest") as reader:
        assert read(reader, 1) == Counter({(2, 25): 1}), "a group that has begun goes on"


def test_who_begins_with_what_comes_has_all_of_a_partition_that_was_added_since(orders: Orders) -> None:
    with orders.read(start="latest") as reader:
        orders.client.add_partitions(orders.name, 5)
        orders.append(4, 2)
        assert read(reader, 2) == Counter({(4, 0): 1, (4, 1): 1})


def test_who_begins_with_what_comes_has_all_of_a_stream_that_was_made_anew(orders: Orders) -> None:
    with orders.read(start="latest") as reader:
        orders.client.delete_stream(orders.name)
        orders.client.create_stream(orders.name, partitions=4)
        orders.append(1, 2)
        assert read(reader, 2) == Counter({(1, 0): 1, (1, 1): 1})


def test_who_begins_with_what_comes_begins_at_the_first_that_is_still_there(orders: Orders) -> None:
    """Retention went past the end of then, before this member held the partition, or asked for its first batch."""
    with orders.read(start="latest") as reader:
        orders.append(1, 3)
        orders.client.trim(orders.name, before=27, partitions=[1])
        assert read(reader, 1) == Counter({(1, 27): 1})


def test_nothing_of_a_stream_that_was_made_anew_is_passed_over_by_what_was_told_of_before(orders: Orders) -> None:
    """By a broker that is behind: who begins was granted the new one, and hears of the end of the former one."""
    with orders.read(start="latest") as reader:
        of_before = orders.client.resolve([Position(orders.name, 1, "latest")])
        orders.client.delete_stream(orders.name)
        orders.client.create_stream(orders.name, partitions=4)
        orders.append(1, 30)
        resolve, asked = reader._start._resolve, list[int]()

        def behind(positions: Iterable[Position]) -> list[Resolved]:
            found = resolve(wanted := list(positions))
            asked.extend(each.partition for each in wanted)
            return found if asked.count(1) > 1 else [of_before[0] if at.partition == 1 else at for at in found]

        with patch.object(reader._start, "_resolve", behind):
            assert read(reader, 1) == Counter((1, offset) for offset in range(30))


@pytest.mark.parametrize("later", [0, 20, 60])
def test_who_begins_with_what_comes_has_all_that_was_written_anew(later: int) -> None:
    """An unclean election, or a power cut, took the tail that was there when `read` was called."""
    of: dict[str, Any] = {"stream": "orders", "partition": 0, "incarnation": "i", "leader_epoch": 3}
    of |= {"log_start_offset": 10, "bytes_ahead": 0, "timestamp_us": None}
    end = Resolved(**of, offset=100, high_watermark=100)

    def resolve(positions: Iterable[Position]) -> list[Resolved]:
        asked = list(positions)
        assert [each.at for each in asked] in (["earliest"], [{"epoch": 3}])
        return [Resolved(**of, offset=10 if each.at == "earliest" else 80, high_watermark=80 + later) for each in asked]

    described: Any = SimpleNamespace(partition_count=1)
    start = GroupStart(
        lambda stream: described, resolve, lambda positions: [end for _ in positions], "latest", ["orders"]
    )
    assert start.offsets([("orders", 0)]) == {("orders", 0): {"first": 80, "incarnation": "i"}}


def replaced(server: Server, orders: Orders, end: int) -> int:
    """Partition 1 has others from `end` on, ten of them, as after an unclean election. Returns the epoch of what it
    had."""
    partition = server.backend.partition(orders.name, 1)
    epoch = partition.leader_epoch
    partition.log.follow(epoch + 1)
    assert partition.log.truncate(end) == end
    partition.lead(epoch + 4)
    orders.append(1, 10)
    return epoch


def test_records_in_the_place_of_those_that_are_done_are_not_passed_over(orders: Orders, server: Server) -> None:
    """M3: an operator had a broker lead that lacked the end of what the group had committed."""
    orders.append(1, 5)
    with orders.read() as reader:
        read(reader, 105)
        reader.commit()
    epoch = replaced(server, orders, 25)
    with orders.read() as reader, pytest.raises(OffsetOutOfRange, match="/1/30: records before this offset") as told:
        read(reader, 1)
    assert told.value.fields["parted_epoch"] == epoch
    [parted] = orders.client.resolve([Position(orders.name, 1, {"epoch": epoch})])
    orders.reset({"offset": parted.offset})
    with orders.read() as reader:
        assert read(reader, 10) == Counter((1, offset) for offset in range(25, 35))


def test_what_is_appended_after_a_change_of_leaders_is_read_on(orders: Orders, server: Server) -> None:
    """And behind what was committed while a broker of the cluster could not keep an epoch."""
    with orders.read() as reader:
        read(reader, 100)
        reader.commit()
    replaced(server, orders, 25)
    with orders.read() as reader:
        assert read(reader, 10) == Counter((1, offset) for offset in range(25, 35))
        reader.commit()
    with patch.object(server.backend, "knows", lambda level: False), orders.read() as reader:
        orders.append(1, 2)
        assert read(reader, 2) == Counter({(1, 35): 1, (1, 36): 1})
        reader.commit()
    [row] = [row for row in server.backend.offsets.group_offsets(orders.name).values() if row.partition == 1]
    assert (row.offset, row.leader_epoch) == (37, -1)
    replaced(server, orders, 35)
    with orders.read() as reader:
        assert read(reader, 8) == Counter((1, offset) for offset in range(37, 45))


def test_a_group_may_begin_at_a_time(orders: Orders) -> None:
    orders.append(1, 3)
    [late] = orders.client.read(orders.name, partitions=[1], start=25)
    with orders.read(start=late.column("timestamp")[0].as_py()) as reader:
        assert read(reader, 3) == Counter({(1, 25): 1, (1, 26): 1, (1, 27): 1})


def test_where_no_record_is_so_late_a_group_begins_with_the_next(orders: Orders) -> None:
    with orders.read(start=datetime.now(UTC) + timedelta(days=1)) as reader:
        eventually(lambda: not reader._follow() and len(reader.partitions) == 4, what="all to have begun")
        orders.append(1, 1)
        assert read(reader, 1) == Counter({(1, 25): 1})


@pytest.mark.parametrize("start", [5, None, "newest", datetime(2026, 1, 1)])
def test_what_is_no_start_is_refused(orders: Orders, start: Any) -> None:
    with pytest.raises(InvalidRequest):
        orders.read(start=start)
    assert orders.name not in [each.group for each in orders.client.groups()], "nobody joined"


def test_of_two_with_one_instance_the_former_ends(orders: Orders) -> None:
    with orders.read(instance="one") as first:
        next(first)
        with orders.read(instance="one") as second:
            next(second)
            with pytest.raises(GroupFenced, match="instance"):
                for _ in first:
                    pass
            next(second)
        first.close()


def test_people_look_at_groups_and_remove_them(orders: Orders) -> None:
    with pytest.raises(UnknownStream):
        orders.client.group(orders.name).read("missing")
    with pytest.raises(InvalidRequest):
        orders.client.group(orders.name, timeout_s=1)
    with pytest.raises(InvalidRequest):
        orders.client.group(orders.name).read()
    with pytest.raises(UnknownGroup):
        orders.described()
    with orders.read(instance="one") as reader:
        next(reader)
        with pytest.raises(GroupInUse):
            orders.client.delete_group(orders.name)
        [member] = orders.described().members
        assert (member.instance, member.streams) == ("one", (orders.name,))
    orders.client.delete_group(orders.name)
    assert orders.name not in [each.group for each in orders.client.groups()]


class Brokers:
    """Three that let a member join and poll. `leave` answers who leaves, by the number of the broker."""

    def __init__(self, leave: Callable[[int, Reply], None], *, timeout_ms: int = 10_000) -> None:
        self.left: list[int] = []
        self.polls: list[Any] = []
        self._timeout_ms = timeout_ms
        self._leave = leave
        self.join: Callable[[Reply], None] | None = None
        self.joins = 0
        self._over = threading.Event()
        self._servers = [RawServer(partial(self._answer, number)) for number in range(3)]

    def __enter__(self) -> Brokers:
        for server in self._servers:
            server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._over.set()
        for server in self._servers:
            server.__exit__(None, None, None)

    @property
    def addresses(self) -> list[str]:
        return [server.address for server in self._servers]

    def read(self) -> GroupReader:
        client = connect(self.addresses, deadline_s=30)
        return client.group("billing").read("orders")

    def _answer(self, number: int, request: Request, reply: Reply) -> None:
        if request.path.endswith("/leave"):
            self.left.append(number)
            self._leave(number, reply)
            return
        if request.path.endswith("/poll"):
            self.polls.append(json.loads(request.body))
            self._over.wait(60)
        elif request.path.endswith("/members"):
            self.joins += 1
            if self.join is not None:
                self.join(reply)
                return
        share = {"group": "billing", "member": "m", "session": 7, "version": 8, "timeout_ms": self._timeout_ms}
        reply.answer(200, json.dumps({**share, "partitions": []}).encode())


def not_ready(reply: Reply) -> None:
    reply.answer(503, json.dumps(NotReady("this broker has no session").to_problem()).encode())


def test_who_leaves_goes_to_another_broker_when_one_refuses() -> None:
    """Its group waits for a whole timeout otherwise."""

    def leave(number: int, reply: Reply) -> None:
        if number < 2:
            not_ready(reply)
        else:
            reply.answer(204)

    with Brokers(leave) as brokers:
        brokers.read().close()
        assert brokers.left == [0, 1, 2]


def test_who_leaves_asks_again_where_all_refuse_for_a_moment() -> None:
    """As they do while there is no controller."""
    refused = Counter[int]()

    def leave(number: int, reply: Reply) -> None:
        refused[number] += 1
        if refused[number] < 2:
            not_ready(reply)
        else:
            reply.answer(204)

    with Brokers(leave) as brokers:
        brokers.read().close()
        assert brokers.left == [0, 1, 2, 0]


def test_a_member_asks_once_at_a_time_after_a_stream_that_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """M4. Its polls are what it lives by: it makes none while it asks again."""
    monkeypatch.setattr(_Life, "_work", lambda self: None)
    with Brokers(lambda number, reply: reply.answer(204)) as brokers, brokers.read() as reader:
        brokers.join = not_ready
        joins = brokers.joins
        with pytest.raises(NotReady):
            reader._life._complete()
        assert brokers.joins == joins + 1


def test_who_leaves_does_not_ask_again_what_is_over() -> None:
    def leave(number: int, reply: Reply) -> None:
        error = UnknownMember("it has expired")
        reply.answer(error.status, json.dumps(error.to_problem()).encode())

    with Brokers(leave) as brokers:
        brokers.read().close()
        assert brokers.left == [0]


def test_who_leaves_waits_for_no_brokers_that_are_gone() -> None:
    """LEAVE_S is for those that answer."""
    with Brokers(lambda number, reply: reply.answer(204)) as brokers:
        reader = brokers.read()
        for server in brokers._servers:
            server.stop_listening()
            server.drop_connections()
        with patch("broker.client.http.patience.time.sleep", side_effect=AssertionError("it waits")):
            reader.close()
        assert brokers.left == []


@pytest.mark.parametrize(("timeout_ms", "wait_ms"), [(2_000, 666), (180_000, 60_000), (600_000, 60_000)])
def test_a_poll_waits_no_longer_than_brokers_take(timeout_ms: int, wait_ms: int) -> None:
    with Brokers(lambda number, reply: reply.answer(204), timeout_ms=timeout_ms) as brokers:
        reader = brokers.read()
        eventually(lambda: brokers.polls, what="a poll")
        assert build(GroupPoll, brokers.polls[0]).wait_ms == wait_ms
        reader.close()


@pytest.mark.parametrize("lock", ["brokers", "pool"])
def test_a_reader_is_dropped_wherever_the_search_for_cycles_finds_it(lock: str) -> None:
    """M5: also amid a call of the same client, whose locks this thread has then. It waited for itself."""
    with Brokers(lambda number, reply: reply.answer(204)) as brokers:
        reader = brokers.read()
        known = reader._life.calls.brokers
        reader.itself = reader  # type: ignore[attr-defined]
        del reader

        def collect() -> None:
            with known._lock if lock == "brokers" else known.pool._lock:
                gc.collect()

        thread = threading.Thread(target=collect, daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        eventually(lambda: brokers.left, what="its leave")


LEFT_AT_THE_END = """
import sys
from broker.client import connect
def read():
    return connect(sys.argv[1]).group("billing").read("orders")
if sys.argv[2] == "dropped":
    read()
elif sys.argv[2] == "held":
    reader = read()
else:
    read().close()
"""


@pytest.mark.process
@pytest.mark.parametrize("how", ["dropped", "held", "closed"])
def test_a_process_that_ends_has_left(how: str) -> None:
    with Brokers(lambda number, reply: reply.answer(204)) as brokers:
        subprocess.run([sys.executable, "-c", LEFT_AT_THE_END, brokers.addresses[0], how], check=True, timeout=120)
        assert brokers.left == [0]
