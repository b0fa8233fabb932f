"""`liftlog auth …`: who may do what: tokens, grants, and who this is."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Final

import click

from broker.api.principals import new_token
from broker.cli.arguments import Argument, Option
from broker.cli.options import Brokers, Json, Yes, answer, client_of, confirm, duration_ms, is_json
from broker.cli.output import json_out, note, table, time_text
from broker.cli.private_files import write_new

TTL_MS: Final = (1_000, 366 * 24 * 3_600_000)
Principal = Annotated[str, Argument(metavar="PRINCIPAL", help="user:NAME, svc:NAME or anonymous.")]
Action = Annotated[str, Argument(metavar="ACTION", help="As stream:read; docs/reference/permissions.md lists them.")]
Name = Annotated[str, Argument(metavar="NAME", help="Of the stream, consumer, …; ending in * for all that begin so.")]
TokenId = Annotated[str, Argument(metavar="TOKEN", help="Id of the token, as `auth token list` shows it.")]
File = Annotated[str, Argument(metavar="FILE", help="Where to write the token; it must not exist.")]


def init(file: File) -> None:
    """Write a first token to a file, for brokers and their admin.

    Each broker names it as auth.admin_token_file. Who bears it is `admin` there, and may do everything.
    """
    made = new_token()
    write_new(file, made.text)
    note(f"{file}: set auth.admin_token_file on each broker to a copy of it, and use it as --token-file")


def whoami(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """Show who this is, as a broker sees it, and what it may do."""
    with client_of(ctx, brokers) as client:
        found = client.whoami()
    if is_json(ctx, json):
        json_out(asdict(found))
        return
    until = f" until {time_text(found.expires_ms)}" if found.expires_ms is not None else ""
    click.echo(f"{found.principal} (by {found.how}{until}); auth.mode = {found.mode}")
    if found.admin:
        click.echo("an admin of the broker's configuration: may do everything")
    table(["action", "name"], [(each.action, each.name) for each in found.grants], empty="no grants")


def create(
    ctx: click.Context,
    principal: Principal,
    file: File,
    ttl: Annotated[
        int, Option("--ttl", metavar="TIME", help="It is good for so long: 12h, 30d.", parser=duration_ms(TTL_MS))
    ] = 30 * 24 * 3_600_000,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Make a token of a principal and write it to a file that only its owner can read."""
    with client_of(ctx, brokers) as client:
        made = new_token()
        write_new(file, made.text)  # before brokers know it: a token that nobody has would be good all the same
        try:
            client.create_token(principal, ttl_s=ttl / 1000, made=made)
        except BaseException:
            os.unlink(file)
            raise
    answer(
        ctx, json, {"token": made.id, "principal": principal, "file": file}, f"token {made.id} of {principal}: {file}"
    )


def list_tokens(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List the tokens, without their secrets."""
    with client_of(ctx, brokers) as client:
        tokens = client.tokens()
    if is_json(ctx, json):
        json_out([asdict(each) for each in tokens])
        return
    table(
        ["token", "principal", "expires (UTC)", "made (UTC)", "by"],
        [(each.id, each.principal, time_text(each.expires_ms), time_text(each.made_ms), each.by) for each in tokens],
        empty="no tokens",
    )


def revoke_token(
    ctx: click.Context, token: TokenId, yes: Yes = False, brokers: Brokers = None, json: Json = False
) -> None:
    """Revoke a token. What is under way with it ends within two seconds."""
    with client_of(ctx, brokers) as client:
        confirm(yes, f"revoke token {token}?")
        client.revoke_token(token)
    answer(ctx, json, {"token": token, "revoked": True}, f"token {token} revoked")


def grant(
    ctx: click.Context,
    principal: Principal,
    action: Action,
    name: Name = "",
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Let a principal do something. The name need not be there yet."""
    with client_of(ctx, brokers) as client:
        warnings = client.grant(principal, action, name)
    for warning in warnings:
        note(f"warning: {warning}")
    said = {"principal": principal, "action": action, "name": name}
    answer(ctx, json, {**said, "granted": True}, f"{principal} may {action} {name}".rstrip())


def revoke(
    ctx: click.Context,
    principal: Principal,
    action: Action,
    name: Name = "",
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Take a grant back, by the name that was granted."""
    with client_of(ctx, brokers) as client:
        warnings = client.revoke(principal, action, name)
    for warning in warnings:
        note(f"warning: {warning}")
    said = {"principal": principal, "action": action, "name": name}
    answer(ctx, json, {**said, "granted": False}, f"{principal} is not granted {action} {name}".rstrip())


def list_grants(ctx: click.Context, brokers: Brokers = None, json: Json = False) -> None:
    """List what each principal is granted."""
    with client_of(ctx, brokers) as client:
        found = client.grants()
    if is_json(ctx, json):
        json_out([asdict(each) for each in found])
        return
    rows = [(each.principal, grant.action, grant.name) for each in found for grant in each.grants]
    table(["principal", "action", "name"], rows, empty="no grants")


def may(
    ctx: click.Context,
    principal: Principal,
    action: Action,
    name: Name = "",
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Say whether a principal may do something. Exit code 1: it may not."""
    with client_of(ctx, brokers) as client:
        allowed = client.test_access(principal, action, name)
    said = {"principal": principal, "action": action, "name": name, "allowed": allowed}
    if is_json(ctx, json):
        json_out(said)
    else:
        click.echo("allowed" if allowed else "refused")
    if not allowed:
        raise click.exceptions.Exit(1)


def require(
    ctx: click.Context,
    end: Annotated[bool, Option("--end", help="Each broker goes by its own auth.mode again.")] = False,
    yes: Yes = False,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Have every broker enforce, whatever its configuration says. All have to do so by themselves already."""
    with client_of(ctx, brokers) as client:
        if end:
            confirm(yes, "let each broker go by its own auth.mode again?")
        client.require_auth(not end)
    said = "each broker goes by its own auth.mode" if end else "every broker enforces"
    answer(ctx, json, {"required": not end}, said)
