"""Rows out of many stored messages, column by column, without an object for each.

The client gathers all rows of what it reads, a broker those that a reader wants.

_gathering.pyx    compiled: messages, columns that grow, batches that lend their memory
reused_memory.py  blocks that Arrow borrows and gives back
"""
