"""Defects that were found in review and mended, each with the tests that were red before: rows of
docs/explain/mistakes.md (`mistakes.py`)."""

from __future__ import annotations

from typing import Final

MENDS: Final[dict[str, tuple[str, ...]]] = {
    # nothing acknowledged is lost
    "the end of half a pass of compaction is not known to others": (
        "unit/storage/test_superseded::half_a_pass_and_a_leader_that_ends_within_it",
        "unit/storage/test_superseded::a_mark_that_is_not_known_counts_as_the_high_watermark",
    ),
    "a log that begins anew forgets what it lacks before it has it": (
        "unit/storage/test_superseded::a_power_cut_at_each_step_of_beginning_anew",
    ),
    "followers eat the disk's reserve": (
        "unit/link/test_room::a_follower_without_room_leaves_at_once_and_joins_when_it_has_room",
        "unit/link/test_room::a_leader_stops_before_its_followers_where_all_disks_are_alike",
    ),
    "a full disk keeps trims, deletions and retention from making room": (
        "unit/link/test_room::with_too_few_that_have_room_appends_say_so_and_a_trim_makes_room",
        "unit/storage/test_full_disk::space_is_freed_where_no_byte_is_free",
    ),
    "the journal of Raft has no room of its own": (
        "unit/raft/test_room::entries_marks_snapshots_and_starts_need_no_free_byte",
        "unit/raft/test_room::a_group_on_full_disks_takes_what_makes_room_after_what_grows_is_refused",
    ),
    "stages and the broker's own streams grow into the reserve": (
        "unit/runtime/test_room::who_grows_stops_in_order_and_a_follower_begins_again_where_a_leader_may",
        "unit/test_writers::consumers_commit_until_half_of_the_reserve",
        "unit/test_writers::rewriting_stops_at_the_reserve_and_later_for_the_brokers_own_streams",
    ),
    "a writer to the disk is in no table": (
        "unit/test_writers::who_makes_replaces_or_lengthens_a_file_stands_in_the_table",
    ),
    "the window of ids goes by a clock that jumps": (
        "unit/storage/test_clocks::a_new_leader_with_another_clock_knows_the_ids_of_the_window",
        "unit/storage/test_clocks::an_id_is_known_for_its_window_wherever_the_clock_is_set",
    ),
    "retention deletes what a clock that jumped makes old": (
        "unit/storage/test_clocks::a_clock_that_is_ahead_deletes_nothing_that_has_not_been_here_for_long_enough",
        "unit/runtime/test_doubted_clock::retention_deletes_nothing_for_a_clock_that_jumped",
    ),
    "producers and sinks expire by the new leader's clock": (
        "unit/storage/test_clocks::a_producer_expires_after_the_time_that_passed_for_the_broker",
        "unit/sinks/test_rounds::a_coordinator_whose_clock_is_ahead_forgets_no_sink_before_its_grace",
        "unit/sinks/test_rounds::a_leader_whose_clock_is_ahead_drops_no_stage_before_its_lease",
    ),
    "a damaged replica leaves, and asks nobody for what it lacks": (
        "unit/link/test_mending::all_three_are_damaged_at_different_places",
        "unit/link/test_mending::only_files_that_were_moved_aside_have_it",
        "unit/storage/test_mending::records_of_another_history_are_refused",
    ),
    "loss is spoken of before anybody was asked": (
        "unit/link/test_mending::all_are_damaged_in_the_same_place_and_each_stays",
        "unit/link/test_mending::what_nobody_has_is_given_up_on_the_leader_and_the_others_copy_that",
    ),
    # nothing stands still
    "a command looks at every partition": ("unit/runtime/test_touched::a_command_looks_at_what_it_has_touched",),
    "each change of in-sync replicas is a command of its own": (
        "unit/runtime/test_isr_changes::a_broker_that_rejoins_with_many_partitions_causes_few_commands",
    ),
    "sessions lapse while a broker has many partitions to open": (
        "unit/metadata/test_controller::a_dead_leader_of_thousands_of_partitions_costs_few_commands",
        "unit/metadata/test_long_sessions::a_session_is_as_long_as_ever_with_few_partitions_and_longer_with_many",
    ),
    "a fetch reads an index under the partition's lock": (
        "unit/link/test_answering::intake_goes_on_while_a_lagging_follower_has_an_index_read",
        "unit/storage/test_reads_beside_appends::nothing_reads_a_disk_while_appends_wait",
    ),
    "a stream that was deleted stays in memory": (
        "unit/runtime/test_deleted_memory::nothing_stays_of_streams_that_are_made_and_deleted",
        "unit/link/test_memory::nothing_stays_of_streams_that_are_made_and_deleted",
        "unit/link/test_memory::an_outbox_keeps_nothing_of_what_it_has_forgotten",
    ),
    "who is held for dead is proposed at each fetch": (
        "unit/runtime/test_leader_effects::who_is_held_for_dead_is_refused_without_a_question",
    ),
    "a fault in one partition ends the stream of all": (
        "unit/link/test_link::a_fault_in_one_follower_ends_no_stream",
        "unit/link/test_answering::a_fault_in_one_partition_is_told_and_ends_no_stream",
        "unit/runtime/test_partition::a_fault_after_a_sync_leaves_the_partition_to_be_synced_again",
    ),
    "a replica without its checkpoint counts as whole": (
        "unit/storage/test_following::a_replica_without_its_checkpoint_says_so_at_each_open",
    ),
    "`not_leader` counts as an answer to a publish": (
        "unit/client/test_client_no_answer::who_does_not_lead_gives_no_answer",
    ),
    # who may come in
    "a field of a command is taken as it comes": (
        "unit/metadata/test_shapes::no_field_takes_what_it_is_not",
        "unit/metadata/test_shapes::an_incarnation_is_one_part_of_a_path",
        "unit/storage/test_folder::no_name_of_the_catalog_leads_out_of_the_folder",
    ),
    "an address with a control character empties answers": (
        "unit/metadata/test_shapes::an_address_is_safe_in_a_header",
        "unit/serving/test_origin::a_header_with_a_control_character_costs_no_answer",
    ),
    "a malformed message of Raft ends a broker": (
        "unit/raft/test_messages::each_field_of_a_message_is_looked_at",
        "unit/raft/test_messages::a_malformed_message_cuts_its_connection",
    ),
    "a cluster without a secret": (
        "unit/cli/test_secret::up_makes_a_secret_for_several_brokers",
        "unit/cli/test_secret::check_says_that_a_cluster_has_no_secret",
    ),
    "the leader proves itself to a stranger": (
        "unit/link/test_handshake::a_leader_says_the_same_to_anybody_before_it_knows_the_secret",
    ),
    "checks are left out under `python -O`": ("unit/cli/test_secret::no_broker_starts_where_checks_are_left_out",),
    "a web page talks to a broker": ("unit/serving/test_origin::every_endpoint_refuses_and_nothing_is_done",),
    "a body is read before there is room for it": (
        "unit/serving/test_bodies::no_operation_reads_a_body_that_is_not_reserved",
        "unit/serving/test_bodies::what_arrow_would_decompress_is_reserved_before",
        "unit/serving/test_ndjson::readers_that_take_nothing_hold_no_more_than_the_budget",
    ),
    "long JSON and patterns hold up the loop": (
        "unit/serving/test_bodies::long_json_and_patterns_never_hold_up_the_loop",
        "unit/serving/test_bodies::a_watch_with_a_costly_pattern_is_refused",
    ),
    "whoever holds connections keeps others out": (
        "unit/serving/test_connections::the_longest_idle_goes_first",
        "unit/serving/test_connections::whoever_holds_all_connections_hides_neither_health_nor_brokers",
        "unit/link/test_strangers::strangers_keep_nobody_out",
        "unit/link/test_bulk::the_oldest_stranger_goes_first",
    ),
    "a stranger fills the memory of Raft's connection": (
        "unit/raft/test_wire::a_stranger_may_say_only_so_much_secret_or_none",
    ),
    "acks go wherever a message says": ("unit/ingest/test_reply_prefixes::acks_go_to_the_prefixes_only",),
    "names of producers stay for ever": (
        "unit/metadata/test_producers::a_name_that_is_not_used_is_forgotten_and_its_producer_comes_back_as_another",
        "unit/metadata/test_producers::ten_thousand_names_that_nobody_uses_make_room",
    ),
    "a password in a NATS URL is shown": (
        "unit/api/test_nats_url::a_configuration_shows_none",
        "unit/api/test_nats_url::log_lines_show_none",
        "unit/api/test_nats_url::a_secret_of_the_command_line_is_not_kept",
    ),
    "a message forges a line of the log, or moves a cursor": (
        "unit/runtime/test_logs::nobody_forges_a_line_a_field_or_a_cursor",
        "unit/cli/test_values::json_on_a_terminal_moves_no_cursor",
    ),
    "what is begun as a NATS connection is lost is not captured for 5 s": (
        "unit/runtime/test_nats_seam::a_barrier_ends_at_once_when_the_connection_is_lost",
    ),
    "a leader that is about to go on counts as paused": (
        "unit/serving/test_elsewhere::a_leader_that_is_changing_goes_by_nothing_yet",
        "unit/runtime/test_placed::what_was_sent_before_a_pause_is_taken_in_before_the_partition_refuses",
    ),
    # what an operator meets
    "a copy of a running folder is taken for it": (
        "unit/cli/test_datafolder::a_copy_has_none_of_the_processes_and_a_moved_folder_has_them",
    ),
    "a new checkpoint beside the progress of another reads on": (
        "spark/test_offsets::a_new_checkpoint_beside_the_progress_of_another_is_refused",
    ),
    "one large batch is one micro-batch": (
        "unit/storage/test_log::bytes_of_a_part_of_a_batch_are_in_proportion_to_its_records",
        "spark/test_offsets::one_large_batch_of_the_log_is_cut_into_equal_parts",
    ),
    "Spark does not know the environment of the command line": (
        "unit/spark_liftlog/test_spark_options::brokers_that_no_option_names_are_those_of_the_environment",
    ),
    "a broker that refuses every record is ready": (
        "unit/runtime/test_control::a_broker_that_refuses_every_record_for_room_is_not_ready",
    ),
    "what an operator has accepted as lost is wrong for ever": (
        "unit/cli/test_log::repair_notes_what_is_lost_and_is_then_done_with_it",
    ),
    "a stream with a wildcard never gets partitions": (
        "unit/runtime/test_control::a_stream_with_a_wildcard_at_its_end_can_have_more_partitions_later",
    ),
    "a drain with too few brokers stops without a word": (
        "unit/cluster/test_admin::with_nobody_to_take_its_place_a_drain_needs_to_be_told",
    ),
    "a broker that comes back makes others count anew who is silent": (
        "unit/metadata/test_member_watch::a_broker_that_comes_back_was_not_silent_while_it_was_taken_for_dead",
        "unit/metadata/test_member_watch::time_that_several_brokers_left_untold_is_passed_over_once",
    ),
    "a reader that nobody holds waits for itself": (
        "unit/client/test_client_groups::a_reader_is_dropped_wherever_the_search_for_cycles_finds_it",
    ),
}
"""By defect: its tests, as `path below tests, without .py::name without test_`."""
