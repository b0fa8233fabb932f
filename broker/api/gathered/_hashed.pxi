# The hash of slices of bytes that spark_liftlog/writing/digest.py defines. That module computes the same with numpy.


cdef inline uint64_t mixed(uint64_t word) noexcept nogil:
    word = (word ^ (word >> 32)) * <uint64_t>0xFF51AFD7ED558CCD
    word = (word ^ (word >> 29)) * <uint64_t>0xFF51AFD7ED558CCD
    return word ^ (word >> 32)


def hashed(const uint8_t[::1] data, const int32_t[::1] offsets, const uint64_t[::1] keys):
    """The hashes of slices, a uint64 for each data[offsets[n] : offsets[n + 1]]. The last key is for chunks."""
    cdef Py_ssize_t row, count = offsets.shape[0] - 1, place, chunk_words = keys.shape[0] - 1
    cdef int64_t left
    cdef uint64_t word, chunk, total, number
    cdef const uint8_t* at
    assert count >= 0 and chunk_words > 0 and 0 <= offsets[0] and offsets[count] <= data.shape[0]
    found = np.empty(count, np.uint64)
    cdef uint64_t[::1] out = found
    for row in range(count):
        assert offsets[row] <= offsets[row + 1]
    with nogil:
        for row in range(count):
            left = offsets[row + 1] - offsets[row]
            at = &data[0] + offsets[row]
            total = chunk = number = 0
            place = 0
            while left > 0:
                word = 0
                if left >= 8:
                    memcpy(&word, at, 8)
                else:
                    memcpy(&word, at, left)
                chunk += mixed(word ^ keys[place])
                at += 8
                left -= 8
                place += 1
                if place == chunk_words and left > 0:
                    total += mixed(chunk ^ mixed(number + keys[chunk_words])) if number else chunk
                    chunk = place = 0
                    number += 1
            total += mixed(chunk ^ mixed(number + keys[chunk_words])) if number else chunk
            out[row] = mixed(total + <uint64_t>(offsets[row + 1] - offsets[row]))
    return found
