"""Logs whose records are encrypted on disk. Everything above the files sees plain messages.

message.py   one batch message encrypted, and opened again: the format
keys.py      master keys, and the keys of logs that they wrap
keyfile.py   the file `keys` of a log
in_use.py    which master keys the logs of a data folder need
proof.py     whether keys are those of a log
vault.py     what one log seals and opens with; vault_of.py  where it is opened
own.py       what a recovery goes by: batches that open
plans.py     a read plan whose messages are opened in memory

Design: docs/adr/0209-batches-are-encrypted-one-by-one.md, docs/reference/storage.md.
"""
