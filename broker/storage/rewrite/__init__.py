"""Sealed segments written anew: key compaction and coalescing.

clean_state.py    How far the keys of a log were compacted: the file `compaction`.
coalescing.py     Small batches become large ones, small segments become larger ones. Same records,
                  same offsets, same readers.
compaction.py     Key compaction: of the records of one key only the newest stays, and every record
                  without a key.
joining.py        Several segments become one: how that survives a crash at any step.
keymap.py         From keys to their newest offsets, in a fixed number of bytes: what compaction
                  remembers of a log.
reused_blocks.py  The stored messages of a log in turn, each in the memory of the one before it: for
                  those who copy gigabytes.
rewriting.py      Sealed segments written anew: without the records that are not to stay, their
                  batches joined. One file comes of one segment or of several that follow one
                  another. Nothing is put in its place here.
"""
