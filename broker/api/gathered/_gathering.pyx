# cython: boundscheck=False, wraparound=False, cdivision=True
"""Gathering, compiled: rows of many stored messages into few Arrow batches, column by column.

    stored message   | head: rows, nodes, places | validity | offsets | data | ... |      (broker/api/batch.py)
                                                      |          |        |
    gathered, per buffer of each wanted column      bytes     + base    bytes     -> one array per column

To decode each message with Arrow and join the results makes some fifty objects a message, and copies bytes that have
left the processor's cache by then. Here a message costs a table of numbers and a few copies, out of memory that was
received just now. Arrow's objects are made once for each batch that is handed out.

G1  The rows are exactly those that Arrow would have decoded, in order.
G2  An error in a message leaves the rows that were gathered before as they are: the message may be added once more.
G3  Rows that were handed out never change: their memory is lent (_loan.pxi), and the next rows go elsewhere.
G4  Nothing outside of the message and the blocks is touched, whatever numbers the message has.

Nothing is written of a column that has only had nulls so far; its length is known. A column does not count its rows:
the caller says behind how many the next ones go. So nothing has to be taken back after an error (G2).

Files, each for one idea: _parts.pxi (a message), _growing.pxi (columns), _loan.pxi (a batch and its memory), _picking.pxi
(rows here and there), and one for the other direction: _hashed.pxi (values for a digest). This one is Gathering. Twins in
Python, on Arrow: broker/client/reading/gathering.py, broker/storage/picking.py.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memcmp, memcpy, memset

import numpy as np
import pyarrow as pa

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    HEADER_BYTES,
    NODE_COUNT,
    NODES_AT,
    ROWS_AT,
    TEMPLATE,
    VALUE_AT,
    VALUE_BYTES,
)
from broker.api.columns import BUFFERS_OF, NODES_OF
from broker.api.errors import BadBatch
from broker.api.schema import SCHEMA


cdef extern from *:
    """
    #ifndef LIFTLOG_SOURCES
    #define LIFTLOG_SOURCES ""
    #endif
    """
    const char *LIFTLOG_SOURCES  # set by setup.py; compared by broker/api/compiled.py

SOURCES = LIFTLOG_SOURCES.decode()

cdef extern from "Python.h":
    int Py_IsInitialized() noexcept nogil


cdef enum:
    BUFFERS = 25
    NODES = 10
    OFFSET_BUFFER = 1

assert BUFFER_COUNT == BUFFERS and NODE_COUNT == NODES and SCHEMA.get_field_index("offset") == 0
cdef bytes TEMPLATE_BYTES = TEMPLATE
cdef Py_ssize_t HEADER_SIZE = HEADER_BYTES
cdef Py_ssize_t BODY_LENGTH_POSITION = BODY_LENGTH_AT
cdef Py_ssize_t VALUE_POSITION = VALUE_AT
cdef Py_ssize_t VALUE_END = VALUE_AT + VALUE_BYTES
cdef Py_ssize_t ROWS_POSITION = ROWS_AT
cdef Py_ssize_t BUFFERS_POSITION = BUFFERS_AT
cdef Py_ssize_t NODES_POSITION = NODES_AT

include "_parts.pxi"
include "_loan.pxi"
include "_growing.pxi"
include "_hashed.pxi"
include "_picking.pxi"


cdef class Gathering:
    """Gathers wanted columns of messages into batches of a size that suits the taker. Arguments as in gathering.py."""

    cdef list columns, gathered, ready
    cdef object shape, schema
    cdef readonly object memory
    cdef int64_t rows_max, bytes_enough, rows, byte_count

    def __init__(self, shape, *, int64_t rows_max, int64_t bytes_enough, memory):
        stored = dict(zip(SCHEMA.names, columns_of(SCHEMA, 0, 0, memory)))
        constants = shape.constants
        assert len(constants) <= CONSTANTS_MAX
        self.columns = [Constant(constants[name]) if name in constants else stored[name] for name in shape.columns]
        self.gathered = [column for column in self.columns if isinstance(column, Column)]
        self.shape = shape
        self.schema = shape.schema
        self.memory = memory
        self.rows_max = rows_max
        self.bytes_enough = bytes_enough
        self.ready = []

    def add(self, message, int64_t start, int64_t end):
        """Take the rows of a message whose offsets are in [start, end). Returns the batches that became ready."""
        cdef const uint8_t[::1] data = message.data
        cdef Part part
        cdef Column column
        cdef int64_t first, stop, size
        rows = None
        if message.columns is None and is_plain(&data[0], len(data)):
            find_parts(&data[0], len(data), &part)
        else:  # compressed, some columns, or not as this release writes it: Arrow decodes it
            message = message.kept()
            rows = message.rows()
            find_arrays(rows, &part)
        header = message.header
        first, stop = self.rows_between(&part, header.first_offset, header.next_offset, start, end)
        if first == stop:
            return self.taken()
        if self.rows and self.rows + stop - first > self.rows_max:
            self.hand_out()
        size = part.byte_count * (stop - first) // part.rows
        if size >= self.bytes_enough and not message.is_passing:
            rows = self.shape.rows((message.rows() if rows is None else rows).slice(first, stop - first))
            self.hand_out()
            self.cut(rows)
            return self.taken()
        for column in self.gathered:
            column.put(&part, first, stop, self.rows)
        self.rows += stop - first
        self.byte_count += size
        if self.rows >= self.rows_max or self.byte_count >= self.bytes_enough:
            self.hand_out()
        return self.taken()

    def rest(self):
        """The batches of all rows that were taken and not handed out yet."""
        self.hand_out()
        return self.taken()

    cdef tuple rows_between(self, const Part* part, int64_t first, int64_t after, int64_t start, int64_t end):
        cdef const int64_t* offsets
        cdef int64_t begin = start - first, stop = end - first
        if start <= first and after <= end:
            return 0, part.rows
        if part.rows != after - first and part.rows:  # not dense: some records were compacted away
            offsets = <const int64_t*>some_bytes(part, OFFSET_BUFFER, 0, 8 * part.rows)
            begin, stop = first_not_below(offsets, part.rows, start), first_not_below(offsets, part.rows, end)
        begin = min(max(begin, 0), part.rows)
        return begin, max(begin, min(stop, part.rows))

    cdef list taken(self):
        ready = self.ready
        self.ready = []
        return ready

    cdef int hand_out(self) except -1:
        cdef ArrowArray* place
        cdef Loan loan
        if self.rows:
            loan = Loan(self.memory)
            place = loan.batch(len(self.columns), self.rows)
            for column in self.columns:
                if isinstance(column, Constant):
                    (<Constant>column).hand_over(loan, place, self.rows)
                else:
                    (<Column>column).hand_over(loan, place, self.rows)
                place += 1
            self.cut(loan.lend(self.schema))
            self.rows = self.byte_count = 0
        return 0

    cdef int cut(self, rows) except -1:
        cdef int64_t at, count = rows.num_rows
        if count <= self.rows_max:
            self.ready.append(rows)
            return 0
        for at in range(0, count, self.rows_max):
            self.ready.append(rows.slice(at, self.rows_max))
        return 0
