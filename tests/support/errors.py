"""The page docs/reference/errors.md, written from the code: `python -m tests.pages` writes it anew.

Code and meaning stand in the docstring of `broker.api.errors`; a test of that module compares it with the classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.api import errors
from broker.cli.exits import code_of
from tests.support.limits import table

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"
ROW: Final = re.compile(r"^ +([A-Z]\w+) +([a-z_]+) +(\S.*)$", re.MULTILINE)


def rows(*, beneath: type[errors.LiftlogError] | None) -> Iterator[tuple[str, ...]]:
    """Code, HTTP status, exit code and meaning of each error beneath a class; None: of those beneath neither."""
    kinds = (errors.Retryable, errors.InvalidRequest)
    for name, reason, meaning in ROW.findall(errors.__doc__ or ""):
        cls = errors.BY_REASON.get(reason)
        if cls is None or cls.__name__ != name:
            continue  # the base of those that may be tried again has a meaning, and no code of its own
        if next((kind for kind in kinds if issubclass(cls, kind)), None) is beneath:
            yield f"`{reason}`", str(cls.status), str(code_of(cls(""))), meaning.replace("*", r"\*")


def page() -> str:
    """All of docs/reference/errors.md."""
    heads = ("code", "HTTP", "exit code", "meaning")
    return HEAD.format(
        retryable=table(heads, list(rows(beneath=errors.Retryable))),
        refused=table(heads, list(rows(beneath=errors.InvalidRequest))),
        others=table(heads, list(rows(beneath=None))),
    )


HEAD: Final = """# Error codes

Each error has one stable code. It is the same everywhere: `reason` in a problem body of the HTTP
API, `error[code]` on the command line, the end of the description that a publisher gets over NATS,
`error.reason` in Python, and `LIFTLOG_` and the code in capitals in Spark. Codes are never renamed
or used for something else. This page is written from `broker/api/errors.py` by `python -m
tests.pages`.

Facts are fields of the error, such as `limit` or `leader`. The table names the most important ones.
If a field `sent` is true, the call may have been carried out although it failed.

## Try again

Nothing was done that would have to be undone, and the same call may succeed later. The Python
client and the command line try again by themselves, for 30 s, where the call may be repeated.

{retryable}
## Change the call

The same call would be refused again.

{refused}
## Look at the broker

{others}
`internal` (500, exit code 1) is a fault of liftlog: please report it, with the broker's log.
"""
