"""A pool of four processes that share the work in a stream of 16 partitions, as members of a consumer group.

    liftlog up &
    python -m examples.worker_pool

Each worker has its part of the partitions. One of them is killed in the middle: the others take over what was its, from
where it had committed. So each job is done, and none twice but those of the batch that the killed one had in its hands.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections import Counter
from multiprocessing.connection import Connection, wait
from typing import Final

from broker.client import Client, connect

STREAM: Final = "jobs"
GROUP: Final = "workers"
PARTITIONS: Final = 16
WORKERS: Final = 4
JOBS: Final = 8_000
TIMEOUT_S: Final = 3.0
SILENT_S: Final = 60.0


def work(brokers: str, done: Connection) -> None:
    """One worker: runs until it is ended.

    Args:
        done: Takes what was done. It has a batch before the next one is asked for, which commits that batch; a queue of
            `multiprocessing` may not, and whoever is killed while it writes there holds up all others.
    """
    with connect(brokers) as client, client.group(GROUP, timeout_s=TIMEOUT_S).read(STREAM, max_bytes=4_000) as reader:
        for batch in reader:
            time.sleep(0.01)  # here the work would be
            done.send(batch.column("value").to_pylist())


def fill(client: Client, jobs: int) -> None:
    """Jobs, spread over all partitions."""
    client.create_stream(STREAM, partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        client.append(STREAM, partition, [{"value": b"%d" % job} for job in range(partition, jobs, PARTITIONS)])


def run(brokers: str, jobs: int = JOBS) -> Counter[bytes]:
    """Do all jobs, and say who did how many. Returns how often each was done."""
    context = multiprocessing.get_context("spawn")
    counts: Counter[bytes] = Counter()
    by_worker: Counter[int] = Counter()
    with connect(brokers) as client:
        fill(client, jobs)
        workers, numbers = [], dict[Connection, int]()
        for number in range(WORKERS):
            results, done = context.Pipe(duplex=False)
            worker = context.Process(target=work, args=(brokers, done), daemon=True)
            worker.start()
            done.close()
            workers.append(worker)
            numbers[results] = number
        is_killed = False
        while len(counts) < jobs:
            ready = wait(numbers, timeout=SILENT_S)
            if not ready:
                raise RuntimeError(f"nothing was done for {SILENT_S:g} s, {len(counts)} of {jobs} jobs before")
            for results in ready:
                assert isinstance(results, Connection)
                number = numbers[results]
                try:
                    values = results.recv()
                except (EOFError, OSError):  # it has ended, perhaps amid a message
                    del numbers[results]
                    continue
                counts.update(values)
                by_worker[number] += len(values)
                if not is_killed and len(counts) > jobs // 4:
                    workers[number].kill()
                    is_killed = True
                    print(f"worker {number} is killed after {by_worker[number]} jobs")
        print(f"lag {client.describe_group(GROUP).lag}; a batch is committed when its worker asks for the next one")
        for worker in workers:
            worker.terminate()
            worker.join()
    for number, count in sorted(by_worker.items()):
        print(f"worker {number} did {count} jobs")
    print(f"{len(counts)} jobs were done, {sum(counts.values()) - len(counts)} of them again after the kill")
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.worker_pool")
    parser.add_argument("--brokers", default="127.0.0.1:9293")
    parser.add_argument("--jobs", type=int, default=JOBS)
    given = parser.parse_args()
    run(given.brokers, given.jobs)
