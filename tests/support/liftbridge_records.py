"""What _records.pyx makes of messages of Liftbridge's clients, beside what protobuf's library makes of them."""

from __future__ import annotations

import pyarrow as pa

from broker.serving.liftbridge import records
from broker.serving.liftbridge.records import Acked
from broker.serving.liftbridge.statuses import StatusError

STORED = Acked("orders", "orders.in", 250, 1_700_000_000_000_000_123, 1_700_000_000_000_001_123)


def check_published(messages: list[bytes]) -> bool:
    """Whether all of them are plain: then the compiled module says the same of them as its twin; else nothing."""
    compiled = records._compiled
    if compiled is None:
        return False
    grouped = compiled.grouped(messages, records.APPENDED_MAX)
    columns = compiled.columns(messages)
    made = records.acks(messages, STORED) if grouped is not None else None
    try:
        expected = records._grouped(messages)
    except StatusError:
        assert (grouped, columns) == (None, None), "they are no records"
        return False
    if grouped is None:
        assert columns is None or len(expected) > 64
        return False
    assert grouped == expected
    assert made == records._acks(messages, STORED)
    of_library = records._parsed_columns(messages)
    of_compiled = records._plain_columns(len(messages), *columns)
    assert of_compiled.keys() == of_library.keys()
    for name, column in of_compiled.items():
        column.validate(full=True)
        assert column.equals(of_library[name]), name
    assert isinstance(pa.ipc.open_stream(records.arrow_of(messages, "s")).read_all(), pa.Table)
    return True
