"""Goal: a replica whose own keys are lost, or another log's, gives nothing up: it stays as it is until they are brought
back or an operator lets it begin anew. The others go on, and so does all else of its broker.

Method: as `test_placed.py`, with a stream that is encrypted.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.api.errors import KeyMissing, WrongKeys
from broker.metadata.partition import Place
from broker.node import placed as placed_module
from broker.node.serial_work import SerialWork
from broker.node.streams import PlacedStreams
from broker.storage.disk import OsDisk
from broker.storage.encrypted.keyfile import load_keys
from broker.storage.segments.checkpoint import read_identity
from tests.support.encrypted_logs import KEYRING
from tests.support.placed import Cluster, Node, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import append, make_leader, noted_ticks, something_happens, time_passes

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.register("b")
    made.register("c")
    return made


def with_key(one: Node) -> Node:
    folders = one.host.folders
    object.__setattr__(folders, "settings", replace(folders.settings, keyring=KEYRING))
    return one


def an_encrypted_log(tmp_path: Path, cluster: Cluster) -> Place:
    """A process has led stream `s`, with one record that is durable here, and is over."""
    with node(tmp_path, cluster, "p1") as one:
        with_key(one).start()
        [at] = cluster.create("s", encryption="aes-256-gcm")
        make_leader(cluster, at)
        append(one.leading(at))
        eventually(lambda: one.log(at).state.durable_end == 1, what="the fsync")
        one.log(at).state.advance_high_watermark(1)
        one.replicas.note_ends()
    return at


def files(tmp_path: Path) -> dict[str, bytes]:
    folder = tmp_path / "streams/s/i-s"
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lost(folder: Path) -> None:
    for name in ("keys", "keys.copy"):
        (folder / name).unlink()


def damaged(folder: Path) -> None:
    for name in ("keys", "keys.copy"):
        (folder / name).write_bytes(b"{" + (folder / name).read_bytes()[1:].replace(b'"number"', b'"nomber"'))


def of_another_log(folder: Path) -> None:
    lost(folder)
    load_keys(OsDisk(), str(folder), read_identity(OsDisk(), str(folder)), KEYRING, is_empty=True)


@pytest.mark.parametrize("harm", [lost, damaged, of_another_log])
def test_it_is_kept_shut_and_the_others_go_on(
    tmp_path: Path,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    harm: Callable[[Path], None],
) -> None:
    """Seen before: it began anew, and so did the next one; were they gone on all, nothing was left."""
    ticks = noted_ticks(monkeypatch)
    at = an_encrypted_log(tmp_path, cluster)
    folder = tmp_path / "streams/s/i-s/0"
    kept = {name: (folder / name).read_bytes() for name in ("keys", "keys.copy")}
    harm(folder)
    before = files(tmp_path)
    with node(tmp_path, cluster, "p2") as two:
        assert with_key(two).start().behind == {"i-s": [0]}
        assert "replica.shut partition=s/0" in caplog.text
        assert list(two.replicas.shut()) == [at]
        state = cluster.state(at)
        assert state.leader in ("b", "c")
        assert "a" not in {*state.isr, *state.last_isr}
        time_passes(ticks)
        something_happens(cluster)
        time_passes(ticks)
        assert two.replicas.partition(at) is None
        assert cluster.kinds().count("step_out") == 0
        two.replicas.note_ends()
        [other] = cluster.create("t", encryption="aes-256-gcm")
        two.partition(other)
    assert files(tmp_path) == before
    for name, data in kept.items():
        (folder / name).write_bytes(data)
    with node(tmp_path, cluster, "p3") as three:
        with_key(three).start()
        assert three.replicas.shut() == {}
        assert three.log(at).state.log_end_offset == 1
        assert three.host.folders.ends.known(at) == 1
        eventually(lambda: ("follow" in str(three.story)) or three.story, what="to follow")


def test_the_last_one_that_could_lead_stays_that_and_says_why(tmp_path: Path, cluster: Cluster) -> None:
    at = an_encrypted_log(tmp_path, cluster)
    for broker in ("c", "b"):
        cluster.fail(broker)
    cluster.put(at, replace(cluster.state(at), isr=("a",), last_isr=()))
    folder = tmp_path / "streams/s/i-s/0"
    shutil.copytree(folder, tmp_path / "copy")
    lost(folder)
    before = files(tmp_path)
    with node(tmp_path, cluster, "p2") as two:
        found = with_key(two).start()
        assert (found.sound, found.behind) == ({"i-s": [0]}, {})
        state = cluster.state(at)
        assert (state.leader, state.isr, state.unclean_epoch) == ("a", ("a",), 0)
        streams = PlacedStreams("a", lambda: cluster.catalog, two.replicas, has_session=lambda: True)
        eventually(lambda: two.replicas.replica(at), what="to be told")
        with pytest.raises(WrongKeys, match="missing"):
            streams.partition("s", 0)
    assert files(tmp_path) == before
    for name in ("keys", "keys.copy"):
        shutil.copy(tmp_path / "copy" / name, folder / name)
    with node(tmp_path, cluster, "p3") as three:
        with_key(three).start()
        assert three.leading(at).log.state.log_end_offset == 1


def test_in_a_rescue_a_broker_says_nothing_without_it(tmp_path: Path, cluster: Cluster) -> None:
    """Its log may be the one that has most."""
    cluster.apply(kind="form_cluster", cluster_id="c")
    an_encrypted_log(tmp_path, cluster)
    lost(tmp_path / "streams/s/i-s/0")
    cluster.apply(kind="begin_rescue", cluster_id="c", epoch_last=cluster.catalog.epoch_last)
    with node(tmp_path, cluster, "p2") as two, pytest.raises(WrongKeys):
        with_key(two).start()


def test_an_operator_lets_it_begin_anew_by_taking_its_folder_away(tmp_path: Path, cluster: Cluster) -> None:
    at = an_encrypted_log(tmp_path, cluster)
    folder = tmp_path / "streams/s/i-s/0"
    lost(folder)
    folder.rename(tmp_path / "kept")
    with node(tmp_path, cluster, "p2") as two:
        assert with_key(two).start().sound == {}
        assert two.log(at).state.log_end_offset == 0
        eventually(lambda: "a" in cluster.state(at).opened, what="to be open")


def test_a_move_away_and_back_lets_it_begin_anew(tmp_path: Path, cluster: Cluster) -> None:
    at = an_encrypted_log(tmp_path, cluster)
    lost(tmp_path / "streams/s/i-s/0")
    with node(tmp_path, cluster, "p2") as two:
        with_key(two).start()
        cluster.apply(kind="reassign", stream=at[0], partition=at[1], replicas=["b", "c"])
        eventually(lambda: "a" not in cluster.state(at).replicas, what="to be moved")
        eventually(lambda: not cluster.catalog.cluster.leftovers.get("a"), what="to be deleted")
        cluster.apply(kind="reassign", stream=at[0], partition=at[1], replicas=["b", "c", "a"])
        assert two.log(at).state.log_end_offset == 0
        assert two.replicas.shut() == {}


def test_a_stream_that_is_deleted_goes_with_what_was_kept_shut(tmp_path: Path, cluster: Cluster) -> None:
    an_encrypted_log(tmp_path, cluster)
    lost(tmp_path / "streams/s/i-s/0")
    with node(tmp_path, cluster, "p2") as two:
        with_key(two).start()
        cluster.apply(kind="delete_stream", name="s")
        eventually(lambda: not (tmp_path / "streams/s").exists(), what="to be deleted")
        eventually(lambda: not cluster.catalog.cluster.leftovers.get("a"), what="to be confirmed")


@pytest.mark.parametrize("how", ["deleted", "unknown", "moved"])
def test_a_folder_that_is_nobodys_needs_no_master_key(tmp_path: Path, cluster: Cluster, how: str) -> None:
    """Seen before: the broker did not start."""
    at = an_encrypted_log(tmp_path, cluster)
    with node(tmp_path, cluster, "p2") as two, pytest.raises(KeyMissing):
        two.start()
    if how == "deleted":
        cluster.apply(kind="delete_stream", name="s")
    elif how == "moved":
        cluster.apply(kind="reassign", stream=at[0], partition=at[1], replicas=["b", "c"])
    else:
        cluster = Cluster()
    with node(tmp_path, cluster, "p3") as three:
        three.start()
        if how == "unknown":
            assert list(three.replicas.shut()) == [at]
        else:
            eventually(lambda: not (tmp_path / "streams/s/i-s/0").exists(), what="to be deleted")
    assert (tmp_path / "streams/s/i-s/0").exists() == (how == "unknown")


def test_a_replica_that_cannot_be_made_is_tried_more_and_more_rarely(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen before: it was tried, and told, three times a second. What lies in its place is not moved meanwhile."""
    monkeypatch.setattr(placed_module, "AGAIN_MS", 1)
    caplog.set_level(logging.WARNING)
    with node(tmp_path, cluster, "p1") as one:
        one.start()
        left = tmp_path / "streams/s/i-s/0"
        left.mkdir(parents=True)
        (left / "somebody's").write_text("only copy")
        [at] = cluster.create("s", encryption="aes-256-gcm")
        placed = one.placed(at)
        eventually(lambda: "replica.not_made" in caplog.text, what="the first try")
        now_ms, tried = one.host.now_ms(), []
        one.replicas.stop()
        monkeypatch.setattr(SerialWork, "ask", lambda turns: tried.append(now_ms))
        assert (left / "somebody's").exists()
    placed._again_ms = 1
    pauses = []
    for _ in range(20):
        assert placed._open(placed._assigned) is None  # type: ignore[arg-type]
        pauses.append(placed._again_ms)
    assert pauses[:4] == [2, 4, 8, 16]
    assert pauses[-1] == placed_module.SELDOM_MS
    placed._is_unfinished = True
    placed._tried_ms = now_ms
    placed.tick(now_ms + placed_module.SELDOM_MS - 1)
    assert tried == []
    placed.tick(now_ms + placed_module.SELDOM_MS)
    assert tried
