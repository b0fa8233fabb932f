"""Goal: a replica whose folder was put back from a copy does not count as one that has everything, and begins anew
from the others; one that nobody else has goes on with what there is.

Method: as `test_placed.py`.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from broker.metadata.partition import Place
from tests.support.placed import Cluster, Node, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import (
    append,
    make_leader,
    noted_ticks,
    only_here,
    rejoin,
    steps_out,
    stored,
    time_passes,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.register("b")
    made.register("c")
    return made


def known(one: Node, at: Place) -> int:
    ends = one.host.folders.ends
    ends.load()
    return ends.known(at)


def an_old_log(tmp_path: Path, cluster: Cluster) -> Place:
    """A process has led stream `s`, with two records that were committed. Its folder is that of before the second."""
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        [at] = cluster.create("s")
        make_leader(cluster, at)
        for end in (1, 2):
            append(one.leading(at))
            eventually(lambda end=end: one.log(at).state.durable_end == end, what="the fsync")  # type: ignore[misc]
            one.log(at).state.advance_high_watermark(end)
            one.log(at).checkpoint()
            if end == 1:
                shutil.copytree(one.root, tmp_path / "copy")
    assert known(one, at) == 2
    shutil.rmtree(one.root)
    (tmp_path / "copy").rename(one.root)
    return at


def test_it_is_behind_and_begins_anew(tmp_path: Path, cluster: Cluster) -> None:
    at = an_old_log(tmp_path, cluster)
    with node(tmp_path, cluster, "p2") as two:
        found = two.replicas.open_found()
        assert (found.sound, found.behind) == ({"i-s": [0]}, {"i-s": [0]})
        two.replicas.note_ends()
    assert known(two, at) == 2, "a process that ends before the catalog has heard of it"
    with node(tmp_path, cluster, "p3") as three:
        assert three.start().behind == {"i-s": [0]}
        assert "a" not in {*cluster.state(at).isr, *cluster.state(at).last_isr}
        steps_out(cluster, at)
        eventually(lambda: three.log(at).state.log_end_offset == 0, what="a new log")
        eventually(lambda: three.story, what="to follow")
        three.replicas.note_ends()
    assert known(three, at) == 0
    with node(tmp_path, cluster, "p4") as four:
        assert four.start().behind == {}


def test_where_nobody_else_may_lead_it_leads_and_says_so(tmp_path: Path, cluster: Cluster) -> None:
    at = an_old_log(tmp_path, cluster)
    for broker in ("c", "b"):
        cluster.fail(broker)
    cluster.put(at, replace(cluster.state(at), isr=("a",), last_isr=()))
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().behind == {"i-s": [0]}
        two.leading(at)
        assert cluster.state(at).unclean_epoch
        assert two.log(at).state.log_end_offset == 1
        two.replicas.note_ends()
        assert known(two, at) == 1
        assert cluster.kinds().count("step_out") == 0


def test_the_only_replica_goes_on(tmp_path: Path, cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        at = only_here(one, cluster)
        stored(one.partition(at), 3)
        one.log(at).checkpoint()
        shutil.copytree(one.root, tmp_path / "copy")
        stored(one.partition(at), 3)
    assert known(one, at) == 6
    shutil.rmtree(one.root)
    (tmp_path / "copy").rename(one.root)
    with node(tmp_path, cluster, "p2") as two:
        found = two.start()
        assert (found.sound, found.behind) == ({"i-only": [0]}, {})
        assert "end=3 known=6 is_only_one=True" in caplog.text
        stored(two.leading(at), 1)
    assert known(two, at) == 4
    assert cluster.kinds().count("step_out") == 0
    assert not cluster.state(at).unclean_epoch


@pytest.mark.parametrize("how", ["old", "damaged", "all died"])
def test_it_stays_while_nobody_else_may_lead(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Those in sync may be gone for good. Then an operator chooses it, and its log is all that there is. Those who died
    with it are live in the catalog until their sessions lapse."""
    ticks = noted_ticks(monkeypatch)
    at = an_old_log(tmp_path, cluster)
    if how != "all died":
        for broker in ("c", "b"):
            cluster.fail(broker)
        alone = replace(cluster.state(at), isr=(), last_isr=("b",), leader=None)
        cluster.put(at, alone)
    if how == "damaged":
        (tmp_path / "ends").unlink()
    with node(tmp_path, cluster, "p2") as two:
        assert two.start().behind == ({} if how == "damaged" else {"i-s": [0]})
        if how == "damaged":
            two.placed(at).damaged("a bit has flipped")
        time_passes(ticks)
        if how == "all died":
            assert cluster.state(at).leader == "b"
            for broker in ("c", "b"):
                cluster.fail(broker)
        assert cluster.state(at).leader is None
        cluster.apply(kind="elect_unclean", broker_id="a", stream=at[0], partition=at[1], epoch_seen=0)
        two.leading(at)
        assert two.log(at).state.log_end_offset == 1
        assert cluster.kinds().count("step_out") == 0
        rejoin(cluster, at, broker="b")
        steps_out(cluster, at)
