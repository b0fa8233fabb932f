"""Sealed segments written anew: key compaction, coalescing, and what an operator gives up.

clean_state.py    how far the keys of a log were compacted
coalescing.py     small batches and segments become large ones
compaction.py     only the newest record of each key stays
gaps.py           a segment is written anew around what is lost in it
giving_up.py      lost ranges become empty batches
joining.py        several segments become one, whatever crashes
keymap.py         from keys to their newest offsets, in bounded memory
mending.py        what is lost comes from another replica
reused_blocks.py  the messages of a log in turn, in one block of memory
rewriting.py      writes the new file of one or several segments
"""
