# cython: boundscheck=False, wraparound=False, cdivision=True
"""JSON objects into Arrow columns, compiled. The rules of the format: json_columns.py.

    values of a batch    {"item": 7, "tags": ["a"]}   | {"item": 8}   | no JSON
                               |          |                 |             |
    columns (_tree.pxi)   item: 7, 8, null      tags: ["a"], null, null    and for each row a reason (0: it is decoded)

One pass over the bytes; each value goes straight into its column. No Python object is made for a row.

J1  A row is decoded whole or not at all: after an error the columns are cut back to where the row began, and null is
    put in its place. That costs one step per column, however the rows before and after it are.
J2  Time is linear in the bytes of the batch, but for nulls: each row has a place in each column, and each element of a
    list or map one in each column below. So `{}` may take as much as a full object.
J3  The recursion is as deep as the schema. What no column wants is passed over in a loop, DEPTH_MAX levels at most.
J4  All that is passed over is checked too: whether a row is JSON does not depend on the columns that are wanted.
J5  Memory is bounded: places in lists and maps are counted as they are taken. A row of which they have more than
    ROW_BYTES_MAX is not decoded. A batch ends before the row with which it would have more than BATCH_BYTES_MAX in all;
    the caller goes on there.

Files: _tree.pxi (columns), _text.pxi (tokens), _leaves.pxi (numbers), _times.pxi, _arrow.pxi (columns as arrays).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.math cimport INFINITY, NAN
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa


cdef extern from *:
    """
    #ifndef LIFTLOG_SOURCES
    #define LIFTLOG_SOURCES ""
    #endif
    typedef unsigned __int128 liftlog_u128;
    """
    const char *LIFTLOG_SOURCES  # set by setup.py; compared by broker/api/compiled.py
    ctypedef unsigned long long u128 "liftlog_u128"

SOURCES = LIFTLOG_SOURCES.decode()

cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, void *overflow) except? -1.0

cdef enum:
    DEPTH_MAX = 1000
    NUMBER_MAX = 1000
    ROW_BYTES_MAX = 128 << 20  # as json_columns.ROW_BYTES_MAX
    BATCH_BYTES_MAX = 64 << 20

cdef enum:  # reasons, in the order of json_columns.REASONS
    DECODED = 0
    EMPTY = 1
    SYNTAX = 2
    ENCODING = 3
    DEEP = 4
    NO_OBJECT = 5
    TWICE = 6
    UNFIT = 7
    BEHIND = 8
    LARGE = 9
    NO_MEMORY = 100

include "_tree.pxi"
include "_text.pxi"
include "_times.pxi"
include "_leaves.pxi"
include "_arrow.pxi"


cdef int put_value(Text* text, Node* node) noexcept nogil:
    """Put the value that begins here into a column."""
    cdef uint8_t first
    if text.at >= text.end:
        return SYNTAX
    first = text.at[0]
    if first == c'n':
        if pass_word(text, b"null", 4) != DECODED:
            return SYNTAX
        return put_null(node)
    if node.kind == STRUCT:
        return put_object(text, node)
    if node.kind == LIST:
        return put_list(text, node)
    if node.kind == MAP:
        return put_map(text, node)
    return put_leaf(text, node, first)


cdef int put_object(Text* text, Node* node) noexcept nogil:
    cdef Node* child
    cdef int64_t row = node.length
    cdef int code, i, next_child = 0
    if text.at[0] != c'{':
        return unfit(text, node)
    text.depth += 1
    if text.depth > DEPTH_MAX:
        return DEEP
    text.at += 1
    pass_space(text)
    if text.at < text.end and text.at[0] == c'}':
        text.at += 1
    else:
        while True:
            code = read_name(text)
            if code != DECODED:
                return code
            child = child_named(node, text.string, text.string_length, &next_child)
            if child == NULL:
                code = pass_value(text)
            elif child.length != row:
                text.column = child
                return TWICE
            else:
                code = put_value(text, child)
                if code == UNFIT and text.depth == 1:
                    text.column = child
            if code != DECODED:
                return code
            pass_space(text)
            if text.at >= text.end:
                return SYNTAX
            if text.at[0] == c'}':
                text.at += 1
                break
            if text.at[0] != c',':
                return SYNTAX
            text.at += 1
            pass_space(text)
    text.depth -= 1
    for i in range(node.children_count):
        if node.children[i].length == row:
            code = put_null(node.children[i])
            if code != DECODED:
                return code
    return put_valid(node)


cdef inline int take_places(Text* text, Node* element) noexcept nogil:
    """One more element of a list or map is to have a place in each column below (J5)."""
    text.places += element.place_bytes
    return LARGE if text.places > ROW_BYTES_MAX else DECODED


cdef int put_list(Text* text, Node* node) noexcept nogil:
    cdef Node* element = node.children[0]
    cdef int code
    if text.at[0] != c'[':
        return unfit(text, node)
    text.depth += 1
    if text.depth > DEPTH_MAX:
        return DEEP
    text.at += 1
    pass_space(text)
    if text.at < text.end and text.at[0] == c']':
        text.at += 1
    else:
        while True:
            code = take_places(text, element)
            if code == DECODED:
                code = put_value(text, element)
            if code != DECODED:
                return code
            pass_space(text)
            if text.at >= text.end:
                return SYNTAX
            if text.at[0] == c']':
                text.at += 1
                break
            if text.at[0] != c',':
                return SYNTAX
            text.at += 1
            pass_space(text)
    text.depth -= 1
    return put_end(node, element.length)


cdef int put_map(Text* text, Node* node) noexcept nogil:
    cdef Node* value = node.children[1]
    cdef int code
    if text.at[0] != c'{':
        return unfit(text, node)
    text.depth += 1
    if text.depth > DEPTH_MAX:
        return DEEP
    text.at += 1
    pass_space(text)
    if text.at < text.end and text.at[0] == c'}':
        text.at += 1
    else:
        while True:
            code = read_name(text)
            if code != DECODED:
                return code
            code = put_bytes(node.children[0], text.string, text.string_length)
            if code == DECODED:
                code = take_places(text, value)
            if code == DECODED:
                code = put_value(text, value)
            if code != DECODED:
                return code
            pass_space(text)
            if text.at >= text.end:
                return SYNTAX
            if text.at[0] == c'}':
                text.at += 1
                break
            if text.at[0] != c',':
                return SYNTAX
            text.at += 1
            pass_space(text)
    text.depth -= 1
    return put_end(node, value.length)


cdef int put_row(Text* text, Node* root) noexcept nogil:
    """One value of the batch: an object, and nothing but space around it."""
    cdef int code
    pass_space(text)
    if text.at == text.end:
        return EMPTY
    if text.at[0] != c'{':
        code = pass_value(text)
        return NO_OBJECT if code == DECODED else code
    code = put_object(text, root)
    if code != DECODED:
        return code
    pass_space(text)
    return DECODED if text.at == text.end else BEHIND


cdef class Decoder:
    """Decodes batches of values into the columns of a schema, one batch after another. Not for two threads at once.

    Args:
        fields: What `json_columns` has made of the schema: for each column (kind, width, precision, scale, name, type,
            children).
    """

    cdef Node* root
    cdef object fields
    cdef readonly object first  # (row, reason, byte, column) of the first row that is not decoded, or None

    def __cinit__(self, fields):
        self.root = NULL
        self.fields = fields
        self.root = new_node((STRUCT, 0, 0, 0, b"", None, fields))

    def __dealloc__(self):
        free_node(self.root)

    def decode(self, values):
        """Decode the first rows of a pyarrow binary array: all, or as many as J5 lets through, at least one.

        Returns:
            The array of each column, and a numpy array with a reason for each of these rows: 0 where it is decoded, or
            null.
        """
        cdef int64_t rows = len(values), first_row = -1, first_byte = 0, i, at = values.offset
        cdef const int32_t* offsets
        cdef const uint8_t* data = NULL
        cdef const uint8_t* valid = NULL
        cdef uint8_t[::1] reasons
        cdef Text text
        cdef Node* column = NULL
        cdef int64_t taken = 0
        cdef int code = DECODED
        found = np.zeros(rows, np.uint8)
        reasons = found
        self.first = None
        cut(self.root, 0)
        if rows:
            buffers = values.buffers()
            offsets = (<const int32_t*><uintptr_t>buffers[1].address) + at
            if buffers[2] is not None:
                data = <const uint8_t*><uintptr_t>buffers[2].address
            if values.null_count:
                valid = <const uint8_t*><uintptr_t>buffers[0].address
            memset(&text, 0, sizeof(Text))
            with nogil:
                for i in range(rows):
                    if valid != NULL and not (valid[(at + i) >> 3] >> ((at + i) & 7)) & 1:
                        code = put_null(self.root)
                    else:
                        text.begin = text.at = data + offsets[i]
                        text.end = data + offsets[i + 1]
                        text.depth = 0
                        text.column = NULL
                        text.places = 0
                        code = put_row(&text, self.root)
                        if code != DECODED and code != NO_MEMORY:
                            reasons[i] = code
                            if first_row < 0:
                                first_row, first_byte, column = i, text.at - text.begin, text.column
                            cut(self.root, i)
                            code = put_null(self.root)
                    if code == NO_MEMORY:
                        break
                    taken += self.root.place_bytes + (text.places if not reasons[i] else 0)
                    text.places = 0
                    if taken > BATCH_BYTES_MAX and i > 0:
                        cut(self.root, i)
                        rows = i
                        break
            free(text.scratch)
            if code == NO_MEMORY:
                raise MemoryError("decoding JSON values")
            if first_row >= rows:
                first_row = -1
            if first_row >= 0:
                name = None if column == NULL else column.name[: column.name_length].decode()
                self.first = first_row, int(found[first_row]), first_byte, name
        arrays = [array_of(self.root.children[i], field) for i, field in enumerate(self.fields)]
        return arrays, found[:rows]
