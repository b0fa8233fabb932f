"""The page docs/reference/permissions.md, written from the code: `python -m tests.pages` writes it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broker.api.permissions import ACTIONS
from broker.serving.http.app import ENDPOINTS
from tests.support.limits import table

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "permissions.md"
HEAD: Final = """\
# Permissions

What each call of the [HTTP API](http-api.md) needs of its caller. A broker goes by this table with
`auth.mode = enforce`, and says what it would refuse with `permissive`. With `off`, the default,
whoever reaches the port may do everything but change tokens and grants, and write `__audit`. How to grant something:
[security.md](../guides/security.md). Why it is as it is: [174](../adr/0174-each-endpoint-says-what-it-needs.md),
[189](../adr/0189-who-asks-and-whether-it-may.md). This page is written from the code.

## Actions

An action is done to a thing that has a name: `stream:read` of `orders`. Of those whose thing has no
name there is one.

{actions}
## Calls

A call needs all that stands in its row. `{{stream}}` is a name in the path and `?sink` one in the query;
other names are those of fields of the body, and `[]` means each one of a list. Of a list, the things
that a caller may not see are left out. `HEAD` needs what `GET` needs. What is audited is recorded in
`__audit`, in every mode, before it is answered ([security.md](../guides/security.md#what-was-done-and-by-whom)).

{calls}"""


def page() -> str:
    """All of docs/reference/permissions.md."""
    calls = [
        (
            f"`{each.method} {each.path}`",
            "; ".join(f"`{need}`" for need in each.permission) or "none",
            "yes" if each.act is not None else "",
        )
        for each in ENDPOINTS
    ]
    return HEAD.format(
        actions=table(("action", "allows to"), [(f"`{action}`", allows) for action, allows in ACTIONS.items()]),
        calls=table(("call", "needs", "audited"), calls),
    )
