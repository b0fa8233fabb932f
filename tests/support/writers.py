"""Every writer to a data folder, what it may use of the disk, and what shows that: a table of docs/reference/limits.md.

`tests/unit/test_writers.py` holds it together with the code: a module of the broker that makes, replaces or lengthens a
file stands in a row, so a new writer has to say what it draws on.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from broker.common.disk_reserve import Budget


class Writer(NamedTuple):
    """One row.

    Attributes:
        what: The files, and when.
        budget: What it stops at; or in words what it has.
        modules: Below `broker`, those that write them.
        tests: They fill the disk through it, or write it on a full one.
    """

    what: str
    budget: Budget | str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


LAST: Final = "goes on to the last byte"
SPARE: Final = "goes on without a byte: spare files"
OWN_ROOM: Final = "goes on without a byte: room of its own"
BY_HAND: Final = "by an operator, while there is room"

WRITERS: Final = (
    Writer(
        "segments and indexes of users' streams, appended by a leader; of what sinks stage",
        Budget.RECORDS,
        ("storage/segments/chain.py", "storage/segments/segment.py"),
        ("tests/unit/runtime/test_room.py::test_what_is_staged_counts_too",),
    ),
    Writer(
        "segments that are written anew by compaction and coalescing, here or at a follower",
        Budget.RECORDS,
        (
            "storage/rewrite/rewriting.py",
            "storage/rewrite/joining.py",
            "storage/rewrite/clean_state.py",
        ),
        ("tests/unit/test_writers.py::test_rewriting_stops_at_the_reserve_and_later_for_the_brokers_own_streams",),
    ),
    Writer(
        "damaged batches of a log, copied from another replica; the segment around them",
        Budget.RECORDS,
        ("storage/rewrite/gaps.py",),
        ("tests/unit/link/test_mending.py::test_a_segment_is_written_anew_only_where_it_leaves_the_reserve_free",),
    ),
    Writer(
        "folders of new partitions",
        Budget.RECORDS,
        ("storage/segments/checkpoint.py",),
        ("tests/unit/test_writers.py::test_no_folder_is_made_at_the_reserve",),
    ),
    Writer(
        "segments and indexes of users' streams, copied from a leader, one by one, in bulk, or from the beginning",
        Budget.FOLLOWED,
        ("storage/segments/chain.py", "storage/segments/segment.py"),
        ("tests/unit/link/test_room.py::test_a_follower_that_begins_with_nothing_takes_nothing_without_room",),
    ),
    Writer(
        "`__offsets`, `__commits` and `__audit`, appended by a leader or written anew",
        Budget.OWN,
        ("storage/segments/chain.py", "storage/rewrite/rewriting.py"),
        ("tests/unit/test_writers.py::test_consumers_commit_until_half_of_the_reserve",),
    ),
    Writer(
        "`__offsets`, `__commits` and `__audit`, copied from a leader",
        Budget.OWN_FOLLOWED,
        ("storage/segments/chain.py",),
        (
            "tests/unit/runtime/test_room.py::test_who_grows_stops_in_order_and_a_follower_begins_again_where_a_leader_may",
            "tests/unit/link/test_room.py::test_followers_of_the_brokers_own_streams_go_on_below_the_users_and_stop_at_three_eighths",
        ),
    ),
    Writer(
        "a bad or uncertain part of a log, kept beside it (`.aside`); the segment around it",
        LAST,
        ("storage/rewrite/gaps.py", "storage/rewrite/giving_up.py", "storage/recovery.py"),
        (
            "tests/unit/storage/test_giving_up.py::test_on_a_full_disk_the_range_stays_lost_until_the_last_byte_it_needs_is_free",
            "tests/unit/storage/test_full_disk.py::test_a_start_that_has_no_room_to_cut_a_torn_end_is_made_again",
        ),
    ),
    Writer(
        "`epochs` with the first record of a leadership; state files as segments are sealed; `ends`, `scrub`, `clock`",
        LAST,
        (
            "storage/segments/epochs.py",
            "storage/memory/state_files.py",
            "node/log_ends.py",
            "background/scrubber.py",
            "background/doubted_clock.py",
        ),
        (
            "tests/unit/storage/test_full_disk.py::test_a_leadership_whose_epoch_cannot_be_written_appends_nothing_and_begins_once_there_is_room",
            "tests/unit/storage/test_full_disk.py::test_where_a_roll_has_no_room_for_a_state_file_the_older_one_stands",
            "tests/unit/runtime/test_log_ends.py::test_ends_that_cannot_be_written_stay_as_they_were",
            "tests/unit/runtime/test_scrubber.py::test_on_a_full_disk_passes_go_on_and_only_the_position_is_not_kept",
            "tests/unit/runtime/test_doubted_clock.py::test_on_a_full_disk_the_clock_goes_on_and_the_former_file_stands",
        ),
    ),
    Writer(
        "`keys` of an encrypted log, as it is made and when the master key is another",
        LAST,
        ("storage/encrypted/keyfile.py",),
        ("tests/unit/storage/test_encrypted.py::test_on_a_full_disk_no_log_is_made_and_one_that_is_there_opens",),
    ),
    Writer(
        "`checkpoint` and state file of a trim, of retention, of a log that begins anew, of a start",
        SPARE,
        ("storage/writing/checkpoints.py", "storage/memory/state_files.py"),
        ("tests/cluster/test_full_disk.py::test_a_trim_makes_room_on_a_disk_without_a_byte_and_appends_go_on",),
    ),
    Writer(
        "`ends`, before a log is cut",
        SPARE,
        ("node/log_ends.py",),
        (
            "tests/unit/runtime/test_log_ends.py::test_on_a_disk_without_a_free_byte_a_log_takes_records_back_all_the_same",
        ),
    ),
    Writer(
        "`catalog.log` of a lone broker: all but what lets something grow",
        SPARE,
        ("control/catalog_store.py",),
        (
            "tests/unit/runtime/test_catalog_faults.py::test_what_lets_nothing_grow_is_written_without_a_byte",
            "tests/unit/runtime/test_catalog_faults.py::test_what_grows_gets_no_spare_file",
        ),
    ),
    Writer(
        "`processes`, at the start of a broker of a cluster",
        SPARE,
        ("control/registering.py",),
        ("tests/cluster/test_three_full.py::test_three_full_disks_are_told_to_make_room_also_after_a_start",),
    ),
    Writer(
        "`raft.log` (entries, term, vote, snapshots) and `raft.log.marks`",
        OWN_ROOM,
        ("raft/journal.py", "raft/journal_files.py"),
        ("tests/unit/raft/test_room.py::test_entries_marks_snapshots_and_starts_need_no_free_byte",),
    ),
    Writer(
        "`lock`, `broker.json`, `raft.json`: at the first start, or as a broker joins or is rescued",
        BY_HAND,
        ("storage/folder.py", "control/membership.py", "control/rescue.py"),
        (
            "tests/unit/storage/test_folder.py::test_on_a_full_disk_no_folder_is_founded_and_one_that_is_there_is_locked",
            "tests/unit/cluster/test_rescue_folders.py::test_on_a_full_disk_nobody_forms_joins_or_leaves_and_each_may_once_there_is_room",
        ),
    ),
    Writer(
        "`run/` and `logs/` of `liftlog up`, beside the data folder",
        BY_HAND,
        ("cli/local/datafolder.py", "cli/local/processes.py"),
        (
            "tests/unit/cli/test_datafolder.py::test_on_a_full_disk_each_file_of_a_run_is_an_error_that_names_it_and_the_former_one_stands",
            "tests/unit/runtime/test_logs.py::test_on_a_full_disk_lines_are_lost_and_nobody_hears_of_it",
        ),
    ),
    Writer(
        "the CA and the certificates of `liftlog certs`, in a folder of their own",
        BY_HAND,
        ("cli/commands/certs.py",),
        ("tests/unit/cli/test_certs.py::test_on_a_full_disk_the_former_files_stand_and_nothing_else_is_left",),
    ),
)


def rows() -> list[tuple[str, ...]]:
    """As the page has them."""
    words = {
        Budget.RECORDS: "stops at the reserve",
        Budget.FOLLOWED: "stops at 6/8 of the reserve",
        Budget.OWN: "stops at 4/8 of the reserve",
        Budget.OWN_FOLLOWED: "stops at 3/8 of the reserve",
    }
    return [
        (writer.what, writer.budget if isinstance(writer.budget, str) else words[writer.budget]) for writer in WRITERS
    ]
