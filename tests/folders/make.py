"""Make data folders with the brokers and clients of another commit. Run by hand, with that checkout's interpreter.

    git worktree add /tmp/old fcd1e96       and install it there, with its compiled modules
    /tmp/old/.venv/bin/python tests/folders/make.py /tmp/old OUT

Writes OUT/lone.tar.zst, OUT/cluster.tar.zst, and beside each what clients saw in it just before its brokers were
killed (manifest.py, contents.py). Uses that checkout's `tests.support`, and this one's `tests.folders`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main(checkout: Path, out: Path) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join((str(checkout), str(HERE)))
    sys.path[:0] = [str(checkout)]
    import tests

    tests.__path__.append(str(HERE.parent))
    import broker

    assert broker.__file__ is not None
    assert Path(broker.__file__).is_relative_to(checkout), f"{broker.__file__} is not of {checkout}"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=checkout, capture_output=True, text=True, check=True)
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(checkout)
    for name, make in (("lone", lone), ("cluster", cluster)):
        with tempfile.TemporaryDirectory() as folder:
            found = make(Path(folder))
            keep(Path(folder), out / f"{name}.tar.zst")
        text = json.dumps({"commit": commit.stdout.strip(), **found}, indent=None, sort_keys=True)
        (out / f"{name}.json").write_text(text.replace("]], ", "]],\n") + "\n")


def keep(folder: Path, to: Path) -> None:
    """Pack the brokers' data folders alone."""
    from tests.folders.keep import pack

    for path in folder.iterdir():
        if not (path / "data").is_dir():
            shutil.rmtree(path)
            continue
        for other in path.iterdir():
            if other.name != "data":
                other.unlink()
    pack(folder, to)


def often(stands: Path) -> dict[str, str]:
    stands.mkdir()
    return {
        "LIFTLOG_CLEANER_INTERVAL_MS": "100",
        "LIFTLOG_CLEANER_CHECKPOINT_INTERVAL_MS": "200",
        "STANDS_IN": str(stands),
    }


COMMAND = ("stepping", "broker")


def lone(folder: Path) -> dict[str, Any]:
    """Two lives, each with a leader epoch of its own."""
    from broker.client import connect
    from tests.folders import contents, manifest
    from tests.support.processes import BrokerProcess, NatsServer

    nats = NatsServer(folder / "nats").start()
    broker = BrokerProcess(folder / "broker", nats, command=COMMAND, env=often(folder / "stands")).start()
    producers: dict[str, Any] = {}
    try:
        with connect(broker.address) as client:
            contents.make_streams(client, {}, {})
            contents.append_plain(client, 0)
            contents.append_rotten(client)
            contents.append_keyed(client)
            contents.append_stamped(client, producers)
        broker.kill9()
        broker.start()
        with connect(broker.address) as client:
            contents.append_plain(client, 1)
            contents.append_others(client)
        assert broker.stop() == 0
        broker.start()
        with connect(broker.address) as client:
            contents.append_plain(client, 2)
            published = contents.published(nats.url)
            contents.append_stamped(client, producers)
            assert contents.rot(broker.folder / "data")
            contents.notice(client)
            contents.wait_rewritten(client, [broker.output])
            runs = contents.commit_all(client, lambda: connect(broker.address), folder / "stands")
            found = manifest.of(client)
        broker.kill9()
    finally:
        broker.stop()
        nats.stop()
    return {**found, **published, "producers": producers, "runs": runs}


def cluster(folder: Path) -> dict[str, Any]:
    """Three brokers; each leads for a time, and is killed with -9."""
    from tests.folders import contents, manifest
    from tests.folders.keep import kept_addresses
    from tests.support.clusters import RealCluster
    from tests.support.processes import NatsServer, eventually

    nats = NatsServer(folder / "nats").start()
    brokers = RealCluster(folder, nats, command=lambda _: COMMAND, **often(folder / "stands"))
    producers: dict[str, Any] = {}
    stack = ExitStack()
    stack.enter_context(kept_addresses(brokers))
    try:
        brokers.start()
        with brokers.client(deadline_s=60.0) as client:
            alone = {"replication_factor": 1, "min_insync_replicas": 1}
            contents.make_streams(client, {"replication_factor": 3}, alone)
            contents.append_plain(client, 0)
            contents.append_rotten(client)
            contents.append_keyed(client)
            contents.append_stamped(client, producers)
            for round_ in (1, 2, 3):
                killed = brokers.leader("plain", round_ - 1)
                brokers.brokers[killed].kill9()
                contents.append_plain(client, round_)
                brokers.brokers[killed].start(wait=False)
                brokers.wait_ready(killed)
                for partition in range(3):
                    brokers.in_sync("plain", 3, partition)
                    brokers.in_sync("stamped", 3, min(partition, 1))
                contents.append_stamped(client, producers)
            contents.append_others(client)
            published = contents.published(nats.url)
            assert [contents.rot(each.folder / "data") for each in brokers.brokers.values()].count(True) == 1
            contents.notice(client)
            client.accept_loss("rotten", 0, accept_loss=True)
            contents.wait_rewritten(client, [each.output for each in brokers.brokers.values()])
            runs = contents.commit_all(client, lambda: brokers.client(deadline_s=60.0), folder / "stands")
            for stream in client.streams(internal=True):
                for number in range(len(stream.partitions)):
                    if stream.name != "rotten":
                        brokers.in_sync(stream.name, 3, number)
            found = eventually(lambda: manifest.of(client), what="all is described")
        for each in brokers.brokers.values():
            each.kill9()
    finally:
        for each in brokers.running.values():
            each.kill9()
        nats.stop()
        stack.close()
    return {**found, **published, "producers": producers, "runs": runs}


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
