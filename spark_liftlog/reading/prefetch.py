"""Reading ahead of Spark: a thread makes the next batch while Spark takes the one before.

    thread    receive, check, decode, join | put |          | put | ...
                                               v   room     v
    worker                                 ready[ ] -> yield -> Spark writes it to the JVM

Without it neither works while the other does: Spark's worker writes through a buffered file, so the end of a
batch reaches the JVM only when the next one is written, and until then nothing happens there.

A1  Batches come in the thread's order, then its error, if it had one, as it was raised.
A2  At most `AHEAD_MAX` batches wait; one more may be in the making.
A3  However the iteration ends (read out, error, closed early by a LIMIT), the thread has ended and its
    iterator is closed before that returns: the interrupt ends what it waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from queue import SimpleQueue
from typing import Final

import pyarrow as pa

from broker.client.http.interrupt import Interrupt

AHEAD_MAX: Final = 1


def read_ahead(batches: Generator[pa.RecordBatch, None, None], interrupt: Interrupt) -> Iterator[pa.RecordBatch]:
    """Yield what `batches` yields, made in another thread.

    Args:
        batches: Not begun yet; closed in that thread.
        interrupt: Ends whatever `batches` may wait for; it then ends or raises.
    """
    ready: SimpleQueue[pa.RecordBatch | BaseException | None] = SimpleQueue()
    room: SimpleQueue[None] = SimpleQueue()  # one for each batch that may be made; a semaphore would be Python's own
    for _ in range(AHEAD_MAX):
        room.put(None)

    def work() -> None:
        outcome = None
        try:
            while not interrupt.is_set:
                ready.put(next(batches))  # no name here: the batch is not kept while the next one is made
                room.get()
        except StopIteration:
            pass
        except BaseException as error:  # raised by whoever waits for the batch
            outcome = error
        finally:
            try:
                batches.close()
            finally:
                ready.put(outcome)  # whatever happens: somebody waits for it

    thread = threading.Thread(target=work, name="liftlog-read-ahead", daemon=True)
    thread.start()
    try:
        while (found := ready.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            room.put(None)
            yield found
            del found
    finally:
        interrupt.set()
        room.put(None)
        thread.join()
