"""Goal: an encrypted log keeps every promise of a log. Method: the other tests of this folder, each log encrypted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
LOOK_AT_BYTES = (
    "test_a_batch_that_a_later_header_covers_is_missed",
    "test_a_batch_that_nothing_covers_looks_like_a_torn_tail",
    "test_a_committed_group_that_is_not_whole_is_told",
    "test_a_cut_at_a_lost_record_does_without_the_index_of_its_segment",
    "test_a_cut_below_the_recovery_point_is_missed_at_each_open",
    "test_a_group_is_what_an_append_at_once_writes",
    "test_a_log_that_ends_below_the_high_watermark_of_its_checkpoint_is_behind",
    "test_a_log_with_producers_or_ids_begins_to_track_in_a_file_of_the_same_offset",
    "test_a_log_without_producers_has_no_state_and_reads_nothing",
    "test_a_real_partition_is_read_by_the_document",
    "test_a_repair_keeps_what_the_broker_would_have_noticed",
    "test_a_second_read_looks_at_what_may_hold_it_alone",
    "test_a_segment_whose_room_could_not_be_trimmed_is_not_sealed",
    "test_a_sole_replica_keeps_to_its_lost_ranges",
    "test_an_open_segment_is_an_arrow_stream_with_room_behind_it",
    "test_batch_that_cannot_stand_there_is_not_believed",
    "test_clean_mark_stays_while_nothing_is_appended",
    "test_clean_restart_reads_no_segment",
    "test_epochs_are_not_derived_from_a_damaged_header",
    "test_golden_joined_segment_is_still_written_and_read_the_same",
    "test_index_that_disagrees_with_its_segment_is_found_at_the_read_and_rebuilt",
    "test_index_that_is_missing_or_wrong_is_rebuilt",
    "test_intact_batch_of_a_later_version_is_refused_and_nothing_is_cut",
    "test_it_is_behind_at_each_open_until_it_was_told_whom_it_follows",
    "test_log_that_cannot_be_opened_says_why",
    "test_polars_and_pyarrow_read_segment_files_as_they_are",
    "test_pyarrow_and_polars_read_a_joined_segment",
    "test_ranges_between_schema_and_marker_are_a_stream",
    "test_repair_needs_the_key",
    "test_room_that_could_not_be_trimmed_is_not_taken_for_what_was_written",
    "test_rows_that_contradict_their_header_are_told_though_the_crc_fits",
    "test_the_power_goes_at_any_step_of_the_open_that_cuts",
    "test_the_scrub_checks_them_and_writes_the_index_again",
    "test_the_state_goes_on_while_the_table_is_built",
    "test_they_share_their_memory",
    "test_what_cannot_be_read_is_kept_aside",
    "test_what_is_lost_within_the_log_costs_nobody_else_anything",
    "test_what_is_written_anew_is_compressed_and_read_by_everybody",
    "test_where_there_are_other_replicas_no_read_goes_past_what_is_damaged",
    "test_who_verifies_with_the_key_finds_it_and_without_it_says_what_was_not_looked_at",
    "test_who_was_not_in_sync_may_miss_what_it_had_never_fsynced",
    "test_whoever_leads_believes_no_header_whose_batch_is_damaged",
    "test_whoever_leads_keeps_a_group_whose_rest_is_damaged_here",
    "test_whoever_leads_with_it_is_behind_no_more",
)
"""Tests that look at bytes of a segment or state file themselves, at places that a plan names, or at what is remembered
between reads: of an encrypted log these are others, and its clean open looks at its last batch. `test_encrypted.py` and
`test_encrypted_recovery.py` have what holds of it instead."""


@pytest.mark.timeout(1_200)
def test_the_other_tests_of_this_folder_hold_of_encrypted_logs() -> None:
    chosen = f"not ({' or '.join(LOOK_AT_BYTES)})"
    lane = "not process and not slow and not long"
    options = ["-q", "-p", "tests.support.encrypted_logs", "-m", lane, "-k", chosen, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/unit/storage"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4_000:]
    assert " passed" in done.stdout
