"""Sealed segments written anew: key compaction and coalescing.

clean_state.py    how far the keys of a log were compacted
coalescing.py     small batches and segments become large ones
compaction.py     only the newest record of each key stays
joining.py        several segments become one, whatever crashes
keymap.py         from keys to their newest offsets, in bounded memory
reused_blocks.py  the messages of a log in turn, in one block of memory
rewriting.py      writes the new file of one or several segments
"""
