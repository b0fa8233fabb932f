"""`liftlog log …`: look into the files of a log, verify, repair and export them. No broker is needed.

A PATH is a segment, a partition's folder, a stream's or a whole data folder, or a copy of one of these. Where a
broker has the folder open, reading goes on beside it and stops at what it has made durable; repair refuses.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import click

from broker.api.plain import printable
from broker.cli.arguments import Argument, Option
from broker.cli.exits import FAILED
from broker.cli.options import Brokers, Json, is_json, not_empty
from broker.cli.output import bytes_text, counted, json_out, note

if TYPE_CHECKING:
    from broker.api.answers import StreamDescription
    from broker.client.payload.decoding import JsonPayload
    from broker.storage.encrypted.keys import Keyring
    from broker.storage.inspect.findings import Finding, Inspection
    from broker.storage.inspect.places import PartitionFolder
    from broker.storage.inspect.repair import RepairAction, RepairReport

Path = Annotated[
    str,
    Argument(metavar="PATH", help="A segment, or the folder of a partition, a stream or a broker.", callback=not_empty),
]


def _not_empty(paths: tuple[str, ...]) -> tuple[str, ...]:
    for path in paths:
        not_empty(path)
    return paths


KeyFiles = Annotated[
    list[str] | None,
    Option(
        "--key-file",
        metavar="FILE",
        help="A master key, where records are encrypted; repeatable, the present one first [those of the broker].",
        callback=_not_empty,
    ),
]


_PARQUET = "One file, or a folder: a file for each partition."


def verify(
    ctx: click.Context,
    path: Path,
    known_ok: Annotated[
        bool, Option("--known-ok", help="Exit code 0 also with losses that the log has noted, and nothing else.")
    ] = False,
    key_file: KeyFiles = None,
    json: Json = False,
) -> None:
    """Check every batch, index and small file. Nothing is changed. The exit code is 1 if anything is wrong."""
    from broker.storage.disk import OsDisk, disk_errors
    from broker.storage.inspect.inspection import inspect_partition
    from broker.storage.inspect.places import find_places, used_by

    places, found = find_places(path), []
    user, keyring = _tell_user(places), _keyring_of(key_file)
    for place in places:
        with disk_errors(f"reading {place.folder}"):
            for _ in range(2):
                in_use = used_by(place.root) is not None
                one = inspect_partition(
                    OsDisk(),
                    place.folder,
                    in_use=in_use,
                    expected=place.expected,
                    only=place.only,
                    keyring=keyring,
                )
                if one.is_well or in_use or used_by(place.root) is None:
                    break  # else a broker has started meanwhile, and what looked wrong may have been its work
        found.append(one)
        if not is_json(ctx, json):
            _show_inspection(one)
    is_well = all(one.is_well for one in found)
    if is_json(ctx, json):
        partitions = [{"partition": place.name, **one.as_json()} for place, one in zip(places, found, strict=True)]
        json_out({"path": path, "is_well": is_well, "used_by": user, "partitions": partitions})
    else:
        sys.stdout.write(_summary(found) + "\n")
    if not (_all_known(found) if known_ok else is_well):
        raise click.exceptions.Exit(FAILED)


def repair(
    ctx: click.Context,
    path: Path,
    dry_run: Annotated[bool, Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    key_file: KeyFiles = None,
    json: Json = False,
) -> None:
    """Repair a log as the next start would. Torn tails are cut, indexes are rebuilt, losses are noted."""
    import time

    from broker.storage.disk import OsDisk, disk_errors
    from broker.storage.inspect.places import find_places
    from broker.storage.inspect.repair import repair as repair_folder

    places, reports, keyring = find_places(path), [], _keyring_of(key_file)
    with _folders_locked(places, dry_run=dry_run):
        for place in places:
            with disk_errors(f"repairing {place.folder}"):
                report = repair_folder(
                    OsDisk(),
                    place.folder,
                    now_us=time.time_ns() // 1_000,
                    expected=place.expected,
                    has_others=place.has_others,
                    dry_run=dry_run,
                    keyring=keyring,
                )
                reports.append(report)
            if not is_json(ctx, json):
                _show_repair(place, report, dry_run=dry_run)
    if is_json(ctx, json):
        partitions = [_repair_json(place, report) for place, report in zip(places, reports, strict=True)]
        json_out({"path": path, "dry_run": dry_run, "partitions": partitions})
    elif all(report.before.is_well for report in reports):
        verb = "was" if len(places) == 1 else "were"
        note(f"{counted(len(places), 'partition')} {verb} checked: there is nothing to repair")
    if any(report.refused or _left_over(report, dry_run=dry_run) for report in reports):
        raise click.exceptions.Exit(FAILED)


def dump(
    ctx: click.Context,
    path: Path,
    records: Annotated[bool, Option("--records", help="Show the records instead of the batches.")] = False,
    start: Annotated[int | None, Option("--start", metavar="OFFSET", min=0, help="First offset.")] = None,
    end: Annotated[int | None, Option("--end", metavar="OFFSET", min=0, help="Exclusive.")] = None,
    limit: Annotated[
        int | None, Option("--limit", "-n", metavar="N", min=0, help="Stop after this many lines.")
    ] = None,
    key_file: KeyFiles = None,
    json: Json = False,
) -> None:
    """Show what is stored, a line for each batch or record. Records are shown with --records."""
    from broker.cli.commands.dump import batch_lines, record_lines
    from broker.storage.disk import disk_errors
    from broker.storage.inspect.places import find_places

    places = find_places(path)
    _tell_user(places)
    make = record_lines if records else batch_lines
    with disk_errors(f"reading {path}"):
        lines = make(places, _keyring_of(key_file), start=start or 0, end=end, as_json=is_json(ctx, json))
        try:
            for number, line in enumerate(lines):
                if number == limit:
                    break
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError:  # `| head` has seen enough
            import os

            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def export(
    ctx: click.Context,
    source: Annotated[
        str, Argument(metavar="SOURCE", help="A PATH; with --brokers, the name of a stream.", callback=not_empty)
    ],
    parquet: Annotated[str, Option("--parquet", metavar="FILE|DIR", help=_PARQUET, callback=not_empty)],
    start: Annotated[str, Option("--start", metavar="WHERE", help="earliest, an offset or an ISO time.")] = "earliest",
    end: Annotated[
        str, Option("--end", metavar="WHERE", help="Exclusive: latest, an offset or an ISO time.")
    ] = "latest",
    columns: Annotated[
        str | None, Option("--columns", metavar="A,B,…", help="Only these columns, in this order [all].")
    ] = None,
    payload: Annotated[
        str | None,
        Option("--payload", metavar="json", help="With --brokers: values as columns, by the schema of the stream."),
    ] = None,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a file that exists.")] = False,
    key_file: KeyFiles = None,
    brokers: Brokers = None,
    json: Json = False,
) -> None:
    """Write records as Parquet, from files or from a broker. Without --brokers SOURCE is a path."""
    from broker.cli.commands.export import Wanted, export_parquet, sources_at, sources_of
    from broker.cli.options import brokers_of, client_of, globals_of, position
    from broker.storage.disk import disk_errors
    from broker.storage.inspect.places import find_places

    wanted = Wanted(
        start=position(start, "--start"),
        end=position(end, "--end"),
        columns=[name.strip() for name in columns.split(",")] if columns else None,
    )
    if payload not in (None, "json"):
        raise click.BadParameter("must be json", param_hint="--payload")
    if brokers or globals_of(ctx).brokers:
        note(f"reading stream {source} from {brokers_of(ctx, brokers)}")
        with client_of(ctx, brokers) as client:
            if payload:
                wanted = replace(wanted, payload=_payload_of(client.describe(source)))
            report = export_parquet(sources_of(client, source, wanted), parquet, wanted, overwrite=overwrite)
    else:
        if payload:
            raise click.BadParameter("needs --brokers: the files do not have the schema", param_hint="--payload")
        places = find_places(source)
        if _tell_user(places) is not None:
            note("records behind the last checkpoint are left out; --brokers asks the broker for all")
        with disk_errors(f"exporting {source}"):
            sources = sources_at(places, wanted, _keyring_of(key_file))
            report = export_parquet(sources, parquet, wanted, overwrite=overwrite)
    if is_json(ctx, json):
        json_out(asdict(report))
    else:
        for file in report.files:
            size, groups = bytes_text(file.bytes), counted(file.row_groups, "row group")
            sys.stdout.write(f"{printable(file.path)}: {counted(file.records, 'record')}, {groups}, {size}\n")
        for lost in report.lost:
            note(f"lost: {lost['stream']}/{lost['partition']} [{lost['start']}, {lost['end']}) is damaged in the log")
    if report.lost:
        raise click.exceptions.Exit(FAILED)


# --- helpers ----------------------------------------------------------------------------------------------------


def _keyring_of(key_files: Sequence[str] | None) -> Keyring | None:
    """The master keys that were named, else those that the environment names to a broker. Raises InvalidSetting."""
    if not key_files:
        import os

        present = os.environ.get("LIFTLOG_ENCRYPTION_KEY_FILE", "")
        former = os.environ.get("LIFTLOG_ENCRYPTION_FORMER_KEY_FILES", "")
        key_files = [path for path in (present, *former.split(",")) if path]
    if not key_files:
        return None
    from broker.config.master_keys import from_file
    from broker.storage.encrypted.keys import Keyring

    return Keyring([from_file(path, setting="--key-file") for path in key_files])


def _payload_of(stream: StreamDescription) -> JsonPayload:
    """What decodes the values of a stream. Raises InvalidRequest: it keeps no schema."""
    from broker.client.payload.decoding import JsonPayload
    from broker.client.payload.kept import schema_for_reading

    return JsonPayload(schema_for_reading(stream))


def _tell_user(places: list[PartitionFolder]) -> int | None:
    """Say once if a broker has the folder open. Returns its process id, 0 if that is not known."""
    from broker.storage.inspect.places import used_by

    for root in sorted({place.root for place in places if place.root}):
        user = used_by(root)
        if user is not None:
            note(
                f"{root} is in use by process {user or 'unknown'}: active segments are read as far as they are durable"
            )
            return user
    return None


def _folders_locked(places: list[PartitionFolder], *, dry_run: bool) -> Any:
    """Hold the locks of the data folders; with a dry run, only see that nobody holds them.

    Raises:
        FolderInUse: a broker has one open.
    """
    from contextlib import ExitStack

    from broker.api.errors import FolderInUse
    from broker.storage.folder import DataFolder
    from broker.storage.inspect.places import owner_of, used_by

    stack = ExitStack()
    try:
        for root in sorted({place.root for place in places if place.root}):
            user = used_by(root)
            if user is not None:
                raise FolderInUse(
                    f"data folder {root} is in use by process {user or 'unknown'}: stop the broker first",
                    path=root,
                    pid=user or None,
                )
            if not dry_run:
                owner = str((owner_of(root) or {}).get("broker_id"))
                stack.enter_context(DataFolder.open(root, broker_id=owner))
    except BaseException:
        stack.close()
        raise
    return stack


def _show_inspection(one: Inspection) -> None:
    for text in one.notes:
        note(text)
    for finding in one.findings:
        _show_finding(finding)


def _show_finding(finding: Finding) -> None:
    where = [printable(finding.path)]
    if finding.position is not None:
        where.append(f"bytes [{finding.position}, {finding.end})")
    if finding.first_offset is not None:
        where.append(f"offsets [{finding.first_offset}, {finding.next_offset})")
    noted = " (known)" if finding.is_known else ""
    sys.stdout.write(f"{finding.kind}{noted}: {', '.join(where)}\n")
    sys.stdout.write(f"    {printable(finding.text)}\n    -> {finding.consequence}\n")


def _summary(found: list[Inspection]) -> str:
    count = sum(len(one.findings) for one in found)
    looked = (
        f"{counted(len(found), 'partition')}, {counted(sum(one.segments for one in found), 'segment')},"
        f" {counted(sum(one.batches for one in found), 'batch', 'batches')},"
        f" {bytes_text(sum(one.bytes for one in found))}"
    )
    known = sum(finding.is_known for one in found for finding in one.findings)
    of_them = f", {known} of them known" if known else ""
    return f"{looked}: {'all is well' if count == 0 else counted(count, 'finding') + of_them}"


def _all_known(found: list[Inspection]) -> bool:
    return all(finding.is_known for one in found for finding in one.findings)


def _show_repair(place: PartitionFolder, report: RepairReport, *, dry_run: bool) -> None:
    if report.refused:
        sys.stdout.write(f"{printable(place.name)}: left alone: {printable(report.refused)}\n")
        return
    if not report.actions:
        if not report.before.is_well:  # only what repair cannot help
            sys.stdout.write(f"{printable(place.name)}: repair cannot help here\n")
            _show_inspection(report.before)
        return
    sys.stdout.write(f"{printable(place.name)}: {'would be repaired' if dry_run else 'repaired'}\n")
    for action in report.actions:
        sys.stdout.write(f"    {_action_text(action, dry_run=dry_run)}\n")
    for finding in report.after.findings if report.after else ():
        _show_finding(finding)


def _action_text(action: RepairAction, *, dry_run: bool) -> str:
    verb = {"cut": "cut", "removed": "remove", "rebuilt": "rebuild", "noted": "note"}[action.what]
    name = f"{f'would {verb}' if dry_run else action.what} {printable(action.path)}"
    if action.what == "cut":
        return f"{name} at byte {action.position}: {action.bytes} bytes"
    if action.what == "noted":
        return f"{name}: offsets [{action.first_offset}, {action.next_offset}) are lost"
    return name


def _repair_json(place: PartitionFolder, report: RepairReport) -> dict[str, Any]:
    return {
        "partition": place.name,
        "folder": place.folder,
        "refused": report.refused,
        "before": report.before.as_json(),
        "actions": [asdict(action) for action in report.actions],
        "after": report.after.as_json() if report.after else None,
    }


def _left_over(report: RepairReport, *, dry_run: bool) -> bool:
    """Whether something is wrong that repair cannot help. Ranges that are lost, and noted as lost, are not."""
    if report.after is not None:
        return any(not finding.is_known for finding in report.after.findings)
    helps = dry_run and not report.refused
    return any(not (finding.is_known or (helps and finding.is_repairable)) for finding in report.before.findings)
