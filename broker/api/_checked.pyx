# cython: boundscheck=False, wraparound=False, cdivision=True
"""The checks of messages, compiled, and what a message of some columns begins with.

    verified            a whole message                        twin: batch.verify_batch
    verified_known      and what is known of its columns       twin: columns.verify_known
    verified_projected  a message of some columns              twin: columns.verify_projected
    begun               what such a message begins with        twin: columns.begun

A check knows the usual message only: uncompressed, of this format version, and right. It leaves all else to its twin,
which finds what is wrong, or that nothing is.

C1  Nothing outside of the message is read, whatever numbers it has.
C2  What is taken here for right is right for the twin too, and has the same header.

Files, each for one idea: _verified.pxi (a header and its fields), _some.pxi (a message of some columns), _zeros.pxi (the
CRC of zeros). `checked.py` hands out what is here, or the twins.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject_GenericSetAttr
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from crc32c import crc32c

from broker.api import columns as twins
from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    CRC_AT,
    FIELDS,
    FORMAT_VERSION,
    HEADER_BYTES,
    NODE_COUNT,
    NODES_AT,
    TEMPLATE,
    VALUE_AT,
    BatchHeader,
    verify_batch,
)
from broker.api.columns import ADDED, BUFFERS_OF, KNOWN, NODES_OF
from broker.api.compression import PACKED_HEADER_BYTES
from broker.api.schema import SCHEMA


cdef extern from *:
    """
    #ifndef LIFTLOG_SOURCES
    #define LIFTLOG_SOURCES ""
    #endif
    """
    const char *LIFTLOG_SOURCES  # set by setup.py; compared by compiled.py

SOURCES = LIFTLOG_SOURCES.decode()

cdef bytes TEMPLATE_BYTES = TEMPLATE
cdef Py_ssize_t HEADER_SIZE = HEADER_BYTES
cdef Py_ssize_t BODY_LENGTH_POSITION = BODY_LENGTH_AT
cdef Py_ssize_t VALUE_POSITION = VALUE_AT
cdef Py_ssize_t BUFFERS_POSITION = BUFFERS_AT
cdef Py_ssize_t NODES_POSITION = NODES_AT

include "_verified.pxi"
include "_zeros.pxi"
include "_some.pxi"
