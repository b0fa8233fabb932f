"""Checks of `liftlog doctor` on the data folder: whose it is, who uses it, the catalog, the clock that wrote it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.api.errors import LiftlogError
from broker.cli.doctor.checks import OK, WARNING, WRONG, Check
from broker.cli.doctor.machine import existing_folder
from broker.cli.output import counted
from broker.storage.folder import BROKER_FILE, FORMAT_VERSION, STREAMS_FOLDER, brokers_in, partition_folder
from broker.storage.inspect.places import owner_of, used_by

if TYPE_CHECKING:
    from broker.config.settings import EncryptionConfig

_CATALOG_GONE: Final = (
    "restore the file from a backup: without it nobody knows the streams, although their records are there"
)
_JOURNAL_GONE: Final = (
    "start the broker: it gets the catalog from the others, under another id, and its vote some seconds later."
    " Keep the others running until then"
)
_READABLE: Final = "give it to the user that runs the broker"


def check_folder(path: str, broker_id: str) -> Iterator[Check]:
    """Check whose the data folder is, who uses it, and whether it may be written."""
    if not os.path.isdir(path):
        parent = existing_folder(path)
        if os.path.exists(path):
            yield Check("data folder", WRONG, f"{path} is not a folder", "set data_dir to a folder")
        elif os.access(parent, os.W_OK | os.X_OK):
            yield Check("data folder", OK, f"{path} does not exist yet: the first start makes it")
        else:
            yield Check(
                "data folder",
                WRONG,
                f"{path} does not exist, and {parent} may not be written",
                f"create it, and make this user its owner (uid {os.geteuid()}), or set another data_dir",
            )
        return
    yield _permissions(path)
    yield _owner(path, broker_id)
    user = used_by(path)
    if user is None:
        yield Check("lock", OK, "no broker has it open")
    else:
        yield Check("lock", OK, f"a broker has it open: process {user or 'unknown'}", values={"pid": user})


def check_catalog(path: str) -> tuple[list[Check], int]:
    """Whether the catalog can be read and all folders it speaks of are there. Returns how many partitions, too."""
    from broker.control.membership import FILE, JOURNAL
    from broker.metadata.catalog import Catalog
    from broker.metadata.journal import decode_lines

    if os.path.exists(f"{path}/{FILE}") or os.path.exists(f"{path}/{JOURNAL}"):
        return _check_journal(path, JOURNAL)
    name = f"{path}/catalog.log"
    catalog = Catalog()
    try:
        lines, _ = decode_lines(Path(name).read_bytes(), where=name)
        for line in lines:
            if "snapshot" in line:
                catalog = Catalog.restore(line["snapshot"])
            else:
                catalog.apply(line)
    except NotADirectoryError:
        return [], 0  # the check of the folder tells
    except FileNotFoundError:
        if not _unknown_folders(path, set()):
            return [Check("catalog", OK, "there is none yet: the first start makes it")], 0
        return [Check("catalog", WRONG, f"{name} is missing", _CATALOG_GONE)], 0
    except OSError as error:
        return [Check("catalog", WRONG, f"{name}: {error.strerror}", _READABLE)], 0
    except (LiftlogError, KeyError, TypeError, ValueError) as error:
        return [Check("catalog", WRONG, str(error), _CATALOG_GONE)], 0
    missing, count = [], 0
    for info in catalog.streams.values():
        count += info.settings.partitions
        for number in range(info.settings.partitions):
            try:
                folder = partition_folder(f"{path}/{STREAMS_FOLDER}", info.name, info.incarnation, number)
            except OSError as error:
                missing.append(f"of {info.name}: {error}")
                continue
            if not os.path.exists(f"{folder}/partition.json"):
                missing.append(folder)
    known = {(info.name, info.incarnation) for info in catalog.streams.values()}
    unknown = _unknown_folders(path, known)
    if missing:
        found = f"{len(missing)} partition folders are missing or have no partition.json, the first: {missing[0]}"
        advice = "put the folders back, or delete the stream; it stays offline until then"
        wrong = Check("catalog", WRONG, found, advice, {"missing": missing})
        return [wrong, *unknown], count
    found = (
        f"{counted(len(catalog.streams), 'stream')}, {counted(count, 'partition')}, those of liftlog itself included"
    )
    return [Check("catalog", OK, found, values={"partitions": count}), *unknown], count


def _check_journal(path: str, journal: str) -> tuple[list[Check], int]:
    """The catalog of one of several brokers, which is the cluster's: `liftlog cluster` tells what is in it."""
    count = sum(1 for _ in Path(path, STREAMS_FOLDER).glob("*/*/*/partition.json"))
    kept = f"kept here: {counted(count, 'partition')}"
    if not os.path.exists(f"{path}/{journal}"):
        return [Check("catalog", WARNING, f"{path}/{journal} is missing; {kept}", _JOURNAL_GONE)], count
    return [Check("catalog", OK, f"the cluster's, in {journal}; {kept}", values={"partitions": count})], count


def _unknown_folders(path: str, known: Collection[tuple[str, str]]) -> list[Check]:
    """Folders of streams that the catalog does not name."""
    from broker.control.orphans import unnamed_folders
    from broker.storage.disk import OsDisk

    try:
        found = [
            f"{path}/{STREAMS_FOLDER}/{a}/{b}" for a, b in unnamed_folders(OsDisk(), f"{path}/{STREAMS_FOLDER}", known)
        ]
    except OSError:
        return []  # the check of the folder tells
    if not found:
        return []
    return [
        Check(
            "stream folders",
            WARNING,
            f"{len(found)} folders are not in the catalog, the first: {found[0]}",
            "left by a change that was cut short, or copied there: look into them with liftlog log dump,"
            " then remove them",
            {"unknown": found},
        )
    ]


def check_master_keys(path: str, encryption: EncryptionConfig) -> Iterator[Check]:
    """Which master keys the encrypted logs of a data folder need, and whether the configuration names them.

    A command that prints a key is not run.
    """
    from broker.config.master_keys import from_file
    from broker.storage.disk import OsDisk
    from broker.storage.encrypted.in_use import count_masters

    try:
        counts = count_masters(OsDisk(), f"{path}/{STREAMS_FOLDER}")
        named = {} if encryption.key_file is None else {encryption.key_file: "encryption.key_file"}
        named |= dict.fromkeys(encryption.former_key_files, "encryption.former_key_files")
        keys = {from_file(file, setting=setting).id: setting for file, setting in named.items()} if counts else {}
    except OSError:
        return  # the check of the folder tells
    except LiftlogError as error:
        yield Check("master keys", WRONG, str(error), "correct it: logs cannot be opened without it")
        return
    if not counts:
        return
    found = ", ".join(
        f"{counts[key]} by {key} ({keys.get(key, 'not in a file that is named')})" for key in sorted({*counts, *keys})
    )
    found, values = f"encrypted logs: {found}", {"logs": dict(counts)}
    unknown = sorted(counts.keys() - keys.keys())
    idle = sorted(key for key, setting in keys.items() if setting.endswith("former_key_files") and not counts[key])
    if unknown and not encryption.key_command:
        advice = f"name the file of {', '.join(unknown)}: as encryption.key_file, or as a former one"
        yield Check("master keys", WRONG, found, advice, values)
    elif idle:
        advice = f"no log here needs {', '.join(idle)} any more: it may go from former_key_files. Keep it for backups"
        yield Check("master keys", WARNING, found, advice, values)
    else:
        yield Check("master keys", OK, found, values=values)


def check_file_times(path: str, now_s: float) -> Iterator[Check]:
    """Whether the clock went back: files of the data folder that are newer than now."""
    newest = 0.0
    for name in ("catalog.log", "raft.log", BROKER_FILE, "lock"):
        if os.path.exists(f"{path}/{name}"):
            newest = max(newest, os.stat(f"{path}/{name}").st_mtime)
    ahead_s = newest - now_s
    if newest and ahead_s > 60:
        yield Check(
            "clock",
            WRONG,
            f"the data folder was written {ahead_s:.0f} s after now: the clock went back",
            "set the clock (NTP) before starting: retention and timestamps go by it",
            {"ahead_s": round(ahead_s)},
        )


def _permissions(path: str) -> Check:
    refused = [
        name
        for name in (path, f"{path}/{STREAMS_FOLDER}", f"{path}/{BROKER_FILE}", f"{path}/catalog.log", f"{path}/lock")
        if os.path.exists(name) and not os.access(name, os.R_OK | os.W_OK | (os.X_OK if os.path.isdir(name) else 0))
    ]
    if refused:
        advice = f"chown -R to the user that runs the broker (here uid {os.geteuid()}), or mount it writable"
        return Check("data folder", WRONG, f"may not be written: {', '.join(refused)}", advice)
    return Check("data folder", OK, path)


def _owner(path: str, broker_id: str) -> Check:
    owner = owner_of(path)
    if owner is None:
        if os.path.exists(f"{path}/{BROKER_FILE}"):
            advice = (
                "restore it: {format_version, cluster_id, broker_id}; partition.json of any partition has the cluster"
            )
            return Check("owner", WRONG, f"{BROKER_FILE} cannot be read", advice)
        if os.path.isdir(f"{path}/{STREAMS_FOLDER}"):
            advice = "restore it from a backup; without it nobody can tell to which broker these streams belong"
            return Check("owner", WRONG, f"streams but no {BROKER_FILE}", advice)
        below = brokers_in(path)
        if below:
            found = f"{path} is not a broker's folder, it holds those of {', '.join(below)}"
            return Check("owner", WRONG, found, f"set data_dir to {path}/{below[0]}")
        return Check("owner", OK, "no broker has used the folder yet")
    if owner.get("format_version") != FORMAT_VERSION:
        found = f"format version {owner.get('format_version')}, this release reads {FORMAT_VERSION}"
        return Check("owner", WRONG, found, "use the release that wrote it, or a later one")
    if owner.get("broker_id") != broker_id:
        found = f"belongs to broker {owner.get('broker_id')!r}, the configuration says {broker_id!r}"
        return Check("owner", WRONG, found, "set broker_id or data_dir so that they agree")
    found = f"broker {broker_id} of cluster {owner.get('cluster_id')}, format version {FORMAT_VERSION}"
    return Check("owner", OK, found)
