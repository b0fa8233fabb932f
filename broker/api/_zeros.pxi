# The CRC-32C of bytes with zeros behind them, as crc_parts.py has it.
#
# n zeros multiply the register, which is a polynomial over GF(2), by x ** 8n. Source: zlib's `crc32_combine`, by Mark
# Adler.

cdef enum:
    POWERS = 67                 # x ** (2 ** k), up to 8 times 2 ** 63

cdef uint32_t POLYNOMIAL = 0x82F63B78
cdef uint32_t[POWERS] powers


cdef uint32_t times(uint32_t a, uint32_t b) noexcept nogil:
    """The product of two polynomials, modulo that of the CRC. The highest bit is the one of x ** 0."""
    cdef uint32_t product = 0, bit = <uint32_t>1 << 31
    while bit:
        if a & bit:
            product ^= b
        bit >>= 1
        b = (b >> 1) ^ POLYNOMIAL if b & 1 else b >> 1
    return product


cdef void fill_powers() noexcept:
    cdef int k
    powers[0] = <uint32_t>1 << 30
    for k in range(1, POWERS):
        powers[k] = times(powers[k - 1], powers[k - 1])


fill_powers()


cdef uint32_t after(uint32_t crc, uint64_t byte_count) noexcept nogil:
    """What is to be joined (XOR) with the CRC of the bytes that follow."""
    cdef int k = 3              # of a byte: x ** 8
    while byte_count:
        if byte_count & 1:
            crc = times(powers[k], crc)
        byte_count >>= 1
        k += 1
    return crc


cdef uint32_t behind(uint32_t crc, uint64_t zeros) noexcept nogil:
    """What a CRC becomes with so many zeros more."""
    return ~after(~crc, zeros)
