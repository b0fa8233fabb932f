"""Goal: a broker that is alone gives up nothing that it cannot open: no log begins anew in the place of one that the
catalog names, whatever became of its folder, and what is put right is opened without a restart.

Method: as `test_placed.py`, with one broker and nobody else.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from broker.api.errors import LiftlogError
from broker.metadata.partition import Place
from broker.runtime.cluster.streams import PlacedStreams
from tests.support.placed import US, Node, ScriptedCatalog, node
from tests.support.processes import eventually
from tests.unit.runtime.test_placed import append

pytestmark = pytest.mark.slow
AT = ("i-s", 0)


@pytest.fixture
def catalog() -> ScriptedCatalog:
    return ScriptedCatalog()


@contextmanager
def alone(tmp_path: Path, catalog: ScriptedCatalog, process: str) -> Iterator[Node]:
    with node(tmp_path, catalog, process, has_others=False) as one:
        yield one


def create(catalog: ScriptedCatalog, name: str, partitions: int = 1) -> list[Place]:
    settings = {"subject": None, "partitions": partitions}
    catalog.apply(
        kind="create_stream", name=name, incarnation=f"i-{name}", created_us=1, settings=settings, replication_factor=1
    )
    return [(f"i-{name}", number) for number in range(partitions)]


def a_former_life(tmp_path: Path, catalog: ScriptedCatalog) -> Path:
    """It has led `s` and `t`, with a record in each. Returns the folder of the log of `s`."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
        for name in ("s", "t"):
            [at] = create(catalog, name)
            append(one.leading(at))
            eventually(lambda at=at: one.log(at).state.durable_end == 1)  # type: ignore[misc]
    return tmp_path / "streams/s/i-s/0"


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def without_identity(folder: Path) -> None:
    (folder / "partition.json").unlink()


def damaged(folder: Path) -> None:
    (folder / "partition.json").write_text("{")


def of_another_stream(folder: Path) -> None:
    text = (folder / "partition.json").read_text()
    (folder / "partition.json").write_text(text.replace('"i-s"', '"i-x"'))


def of_a_later_release(folder: Path) -> None:
    values = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(values | {"format_version": 99}))


@pytest.mark.parametrize("harm", [missing, without_identity, damaged, of_another_stream, of_a_later_release])
def test_what_cannot_be_opened_is_kept_shut_until_it_is_put_right(
    tmp_path: Path, catalog: ScriptedCatalog, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    """G19."""
    caplog.set_level(logging.INFO)
    folder = a_former_life(tmp_path, catalog)
    shutil.copytree(folder, tmp_path / "copy")
    harm(folder)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        two.leading(("i-t", 0))
        assert list(two.replicas.shut()) == [AT]
        assert "stream.offline stream=s partition=0" in caplog.text
        assert list(two.replicas.unserved()) == ["stream s"]
        assert two.replicas.is_settled(AT)
        streams = PlacedStreams(US, lambda: catalog.catalog, two.replicas, has_session=lambda: True)
        for _ in range(2):
            with pytest.raises(LiftlogError) as caught:
                streams.partition("s", 0)
            assert (caught.value.fields["stream"], caught.value.fields["offline"]) == ("s", True)
        [tried] = two.replicas.open_again("i-s")
        tried.result(60)
        assert list(two.replicas.shut()) == [AT], "nothing was put right"
        assert not folder.exists() or not list(folder.parent.glob("*.aside")), "nothing takes its place"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "copy", folder)
        [tried] = two.replicas.open_again("i-s")
        tried.result(60)
        assert two.leading(AT).log.state.log_end_offset == 1
        assert not two.replicas.shut()
        assert "stream.online stream=s partition=0" in caplog.text
        append(two.leading(AT))


def test_what_was_put_right_amid_nothing_is_opened_by_the_next_start(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    folder = a_former_life(tmp_path, catalog)
    folder.rename(tmp_path / "away")
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        two.leading(("i-t", 0))
    (tmp_path / "away").rename(folder)
    with alone(tmp_path, catalog, "p3") as three:
        three.start()
        assert three.leading(AT).log.state.log_end_offset == 1
        assert not three.replicas.shut()


def test_a_stream_that_is_shut_can_be_deleted(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    folder = a_former_life(tmp_path, catalog)
    damaged(folder)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        assert list(two.replicas.shut()) == [AT]
        catalog.apply(kind="delete_stream", name="s")
        eventually(lambda: not folder.exists() and not two.replicas.shut(), what="it to go")
        eventually(lambda: not catalog.catalog.deleted, what="the catalog to forget it")


def test_a_new_stream_needs_no_folder(tmp_path: Path, catalog: ScriptedCatalog) -> None:
    """Its creation may be cut off before its folder is there: it is made then, and nothing is kept shut."""
    with alone(tmp_path, catalog, "p1") as one:
        one.start()
    create(catalog, "s")
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        assert two.leading(AT).log.state.log_end_offset == 0
        assert not two.replicas.shut()


def test_a_copy_that_has_a_later_epoch_than_the_catalog_waits_for_a_restart(
    tmp_path: Path, catalog: ScriptedCatalog
) -> None:
    """What was restored while the broker runs may be from after the catalog's own copy."""
    folder = a_former_life(tmp_path, catalog)
    with alone(tmp_path, catalog, "p2") as two:
        two.start()
        for _ in range(3):
            epoch = catalog.catalog.cluster.epoch_last
            catalog.apply(kind="register_producer", name=f"p{epoch}")
        append(two.leading(AT))
        eventually(lambda: two.log(AT).state.durable_end == 2)
    newer = tmp_path / "newer"
    folder.rename(newer)
    state = catalog.state(AT)
    with alone(tmp_path, catalog, "p3") as three:
        three.start()
        assert list(three.replicas.shut()) == [AT]
        assert catalog.state(AT).leader_epoch > state.leader_epoch
        newer.rename(folder)
        [tried] = three.replicas.open_again("i-s")
        tried.result(60)
        assert three.leading(AT).log.state.log_end_offset == 2
