//! The conformance suite of central databases: every case runs on every database, through the
//! public traits alone.
//!
//! A case is a generic function named after the fact that it checks; it is listed once, in
//! [`suite!`], which an adapter's tests invoke with a [`fixture::Fixture`] of their own: what differs
//! between databases is behind that.

// A case's name says what it checks.
#![allow(missing_docs)]

pub mod fixture;
pub mod golden;
pub mod procedures;
pub mod rejecting;
pub mod remote;
pub mod resolving;
pub mod settling;
pub mod world;

pub mod acting;
pub mod administering;
pub mod calling;
pub mod checking;
pub mod comparing;
pub mod declaring;
pub mod declaring_scripts;
pub mod deploying;
pub mod downloading;
pub mod evolving;
pub mod explaining;
pub mod families;
pub mod following;
pub mod giving_back;
pub mod interrupting;
pub mod judging;
pub mod making;
pub mod meeting;
pub mod offline;
pub mod operating;
pub mod parents;
pub mod previewing;
pub mod proving;
pub mod publishing;
pub mod ranking;
pub mod redeploying;
pub mod refusing;
pub mod repeating;
pub mod scopes;
pub mod script_sessions;
pub mod scripting;
pub mod setting;
pub mod sharing;
pub mod sums;
pub mod taken_over;
pub mod uploading;
pub mod waiting;
pub mod windows;
pub mod writing;

/// Runs the cases that need no more of an adapter than a connection, a dialect and the server's own
/// tables. A new adapter passes them first, before it publishes anything.
#[macro_export]
macro_rules! first_group {
    ($fixture:ty) => {
        $crate::suite!(@cases $fixture;
            administering::users_are_kept,
            administering::remotes_and_credentials_are_kept,
            administering::a_list_of_users_is_added_as_a_whole_or_not_at_all,
            administering::signing_keys_are_added_and_retired_but_never_the_last,
            administering::remotes_that_are_shut_out_are_told_with_the_reason,
            publishing::events_are_numbered_and_read_in_their_order,
            publishing::as_many_bytes_are_read_as_are_wanted_and_one_event_at_least,
            publishing::whoever_reads_while_others_append_skips_nothing,
            publishing::events_under_a_key_are_appended_once,
            publishing::events_at_two_connections_under_one_key_are_appended_once,
            publishing::the_newest_event_of_each_subject_is_found,
            publishing::events_are_forgotten_in_time_but_for_the_newest_of_a_subject,
            publishing::many_events_are_pruned_and_none_that_is_kept,
        );
    };
}

/// Runs every case of the suite on one database.
#[macro_export]
macro_rules! suite {
    ($fixture:ty) => {
        $crate::first_group!($fixture);
        $crate::suite!(@cases $fixture;
            acting::rows_that_refer_to_each_other_are_deleted_together,
            acting::many_rows_that_refer_to_one_are_deleted_with_it,
            administering::the_pulse_tells_the_logs_and_who_was_away_longest,
            administering::a_removed_user_takes_remotes_and_subscriptions_with_him,
            administering::syncs_are_remembered_and_forgotten_in_time,
            administering::incidents_are_remembered_and_forgotten_in_time,
            administering::conflicts_and_refused_rows_are_forgotten_in_time,
            calling::each_call_of_a_list_is_a_transaction_of_its_own,
            calling::a_call_with_another_answer_than_it_returns_is_undone,
            calling::a_call_that_is_too_large_is_undone_and_others_go_on,
            calling::a_long_answer_goes_to_its_sink_while_it_is_read,
            calling::a_sink_that_takes_no_more_ends_the_reading,
            calling::triggers_of_the_application_know_who_calls,
            calling::every_type_goes_in_and_comes_out,
            calling::a_table_that_is_altered_is_no_obstacle_to_calls,
            declaring::what_cannot_be_a_procedure_is_named,
            declaring::what_may_only_read_cannot_write,
            declaring::only_who_is_allowed_calls,
            repeating::a_call_under_a_key_takes_effect_once,
            repeating::of_one_call_at_two_connections_one_takes_effect,
            repeating::what_programs_do_once_is_begun_and_finished_once,
            repeating::a_key_that_is_given_back_is_free_at_once,
            repeating::keys_are_forgotten_in_time,
            interrupting::an_interrupted_call_ends_and_no_other_does,
            interrupting::an_interrupted_call_is_undone,
            interrupting::interrupts_at_any_moment_hit_only_what_they_mean,
            interrupting::a_call_that_takes_too_long_is_interrupted,
            interrupting::who_waits_for_somebody_elses_lock_is_told_that_it_is_busy,
            judging::verdicts_say_what_becomes_of_uploaded_rows,
            judging::a_verdict_gives_nobody_more_rights,
            judging::no_row_passes_that_its_handler_has_not_seen,
            comparing::a_history_is_known_or_not,
            comparing::equal_tables_send_nothing,
            comparing::only_ranges_that_differ_are_sent,
            comparing::changes_since_the_checkpoint_come_before_what_differs,
            comparing::only_where_all_changes_came_before_a_comparison_says_so,
            comparing::an_emptied_table_says_what_came_before_a_comparison,
            comparing::a_comparison_stays_in_the_scope,
            comparing::every_type_compares_equal_after_a_download,
            comparing::keys_of_several_columns_are_divided_into_ranges,
            comparing::tables_that_are_not_compared_are_sent_as_always,
            comparing::an_empty_remote_compares_too,
            comparing::rows_are_asked_for_again_in_a_comparison,
            comparing::ranges_that_do_not_fit_the_table_end_the_download,
            comparing::a_remote_that_is_gone_ends_the_comparison,
            deploying::deploying_twice_does_nothing_the_second_time,
            deploying::a_dry_run_tells_and_changes_nothing,
            deploying::undeploying_removes_every_trace,
            deploying::a_missing_table_of_the_servers_is_named_and_undeploying_still_works,
            deploying::a_state_of_a_newer_format_is_refused,
            deploying::a_missing_change_log_is_made_anew,
            deploying::what_the_database_does_not_have_is_named,
            deploying::key_and_partition_columns_must_be_published,
            deploying::a_values_query_that_cannot_be_is_refused,
            deploying::a_table_without_a_primary_key_is_an_obstacle,
            deploying::tables_are_listed_as_they_are,
            deploying::the_schema_tells_what_remotes_need,
            deploying::changed_partition_columns_send_the_table_anew,
            deploying::two_publications_share_a_table,
            deploying::a_table_that_is_too_wide_for_uploads_is_refused,
            deploying::a_table_that_travels_in_another_direction_is_sent_anew,
            evolving::a_change_that_remotes_can_follow_is_deployed_and_told,
            evolving::a_change_that_holds_up_remotes_is_refused_with_their_list,
            evolving::the_operator_may_go_ahead_and_old_remotes_are_still_known,
            evolving::a_values_query_of_another_type_is_refused_when_it_is_deployed,
            evolving::a_values_query_that_cannot_be_run_is_refused_with_the_place,
            explaining::a_row_that_is_held_is_told_with_the_rule_that_holds_it,
            explaining::a_row_that_moved_is_told_with_where_it_was,
            explaining::a_row_that_was_deleted_is_told_by_the_change_log,
            explaining::a_row_that_follows_others_is_told_parent_by_parent,
            explaining::a_row_outside_of_a_window_is_told_with_where_that_begins,
            explaining::what_a_remote_sets_itself_is_not_guessed,
            explaining::what_was_refused_of_a_row_and_its_conflicts_are_told_with_it,
            explaining::what_does_not_come_down_by_rules_is_told_so,
            explaining::what_may_be_written_of_a_row_is_told,
            explaining::keys_are_understood_and_what_is_unknown_is_named,
            previewing::a_changed_query_tells_which_rows_come_and_go,
            previewing::what_is_deployed_already_changes_nothing,
            previewing::tables_and_columns_that_come_and_go_are_told,
            previewing::rows_that_follow_and_windows_are_counted_as_they_are_sent,
            previewing::what_scripts_give_is_named_and_the_rest_is_counted,
            previewing::one_remote_can_be_asked_about_and_what_it_sets_is_not_guessed,
            downloading::the_first_download_brings_exactly_the_partitions,
            downloading::later_downloads_bring_what_changed,
            downloading::an_empty_download_gives_no_checkpoint,
            downloading::a_transaction_open_across_a_download_is_brought_by_the_next,
            downloading::writers_during_downloads_lose_nothing,
            downloading::a_row_that_moves_leaves_one_remote_and_reaches_the_other,
            downloading::a_changed_key_is_a_removal_and_a_row,
            downloading::gained_partitions_are_sent_and_lost_ones_removed,
            downloading::what_went_up_into_a_gained_partition_and_was_deleted_since_goes,
            downloading::what_went_up_into_a_partition_that_was_lost_before_the_download_goes,
            downloading::a_row_that_moves_with_its_partitions_is_never_lost,
            downloading::null_is_in_no_partition,
            downloading::a_removed_parent_takes_no_children_with_it,
            downloading::own_rows_are_not_sent_back,
            downloading::requested_rows_are_sent_again,
            downloading::an_unknown_mark_means_everything_anew,
            downloading::a_pruned_log_means_everything_anew,
            downloading::a_log_that_is_pruned_under_an_open_download_skips_nothing,
            downloading::what_a_log_says_again_and_again_is_compacted_and_nothing_is_missed,
            downloading::an_emptied_table_is_emptied_everywhere,
            downloading::an_untracked_table_is_sent_whole,
            downloading::an_upload_only_table_is_not_downloaded,
            downloading::twenty_thousand_rows_arrive,
            downloading::a_sink_that_is_gone_ends_the_download,
            families::rows_follow_their_parents_through_whatever_happens_to_them,
            families::any_history_of_a_family_leaves_every_remote_right,
            families::a_parent_that_moves_takes_along_what_open_transactions_do_below_it,
            families::a_row_that_two_rules_hold_stays_until_the_last_lets_it_go,
            following::a_commit_concerns_who_holds_what_it_changed_and_nobody_else,
            following::a_row_that_moves_concerns_whom_it_leaves_and_whom_it_reaches,
            following::a_commit_is_told_when_it_is_committed_however_late,
            following::what_is_undone_is_not_told,
            following::many_rows_of_a_partition_are_told_once,
            following::what_a_sync_notes_of_itself_concerns_nobody,
            following::an_upload_concerns_who_holds_the_same,
            following::a_table_of_which_all_is_sent_again_concerns_everybody,
            following::rows_that_follow_a_parent_concern_whom_it_does,
            following::what_a_remote_holds_is_told_by_its_download_and_its_checkpoint,
            following::whoever_follows_busy_writers_is_told_of_every_commit,
            following::a_write_to_what_partition_queries_read_is_told_and_the_queries_answer,
            following::tables_that_no_partition_query_reads_any_more_are_left_alone,
            proving::what_is_said_of_a_user_is_kept_and_replaced,
            proving::a_password_is_replaced_where_nobody_else_has,
            proving::a_scope_is_what_others_say_and_nothing_without_it,
            proving::a_call_knows_what_others_say_of_its_caller,
            windows::rows_age_out_of_a_window_and_come_back_when_it_is_wider,
            windows::a_window_of_numbers_stands_alone,
            families::thirty_thousand_partitions_are_a_digest,
            families::what_cannot_be_followed_is_named,
            families::rows_that_follow_a_new_parent_arrive_with_it,
            families::what_belongs_to_others_by_its_parents_is_not_taken,
            families::a_row_is_judged_by_what_its_parent_is_in_the_end,
            families::missing_indexes_of_a_family_are_told_with_the_statement_that_makes_them,
            offline::numbers_are_handed_out_once_and_the_centre_keeps_clear_of_them,
            offline::numbers_begin_behind_those_that_are_there,
            offline::what_cannot_have_numbers_is_named,
            offline::a_numbered_key_that_remotes_have_no_numbers_for_is_warned_of,
            offline::columns_that_would_be_null_in_place_of_their_default_are_warned_of,
            offline::remotes_are_told_defaults_and_rules_that_they_understand,
            offline::what_a_remote_leaves_to_the_centre_gets_its_default,
            parents::a_new_parent_and_its_new_children_arrive_together,
            parents::a_scope_is_what_it_is_at_the_end_of_the_upload,
            parents::a_parent_under_another_key_takes_its_children_along,
            parents::children_whose_keys_follow_their_parents_are_found,
            parents::a_parent_and_children_that_nothing_moves_change_together,
            parents::children_of_a_parent_that_stays_stay_with_it,
            parents::keys_that_others_give_up_can_be_taken,
            parents::a_delete_takes_along_nothing_that_nobody_has_seen,
            parents::of_a_tree_only_what_has_nothing_unseen_below_is_deleted,
            parents::bad_children_keep_no_good_ones_out,
            parents::rows_that_refer_to_each_other_are_taken_together,
            parents::a_delete_takes_along_nothing_that_the_same_upload_moves,
            giving_back::the_same_upload_of_two_copies_takes_effect_once,
            giving_back::what_was_given_back_is_remembered_for_90_days,
            giving_back::a_delete_that_is_given_back_and_finds_no_row_is_a_conflict,
            giving_back::the_centre_and_former_ids_are_known_again,
            making::what_a_trigger_makes_of_a_row_is_told,
            making::a_row_can_be_changed_again_whatever_became_of_it,
            scripting::a_script_that_is_refused_for_a_row_has_done_nothing_for_it,
            scripting::scripts_of_sets_run_once_for_all_rows,
            scripting::conflicts_that_the_server_finds_are_resolved_by_scripts,
            scripting::an_updated_key_that_another_row_has_is_refused,
            scripting::a_row_that_its_script_writes_elsewhere_leaves_the_remote,
            scripting::an_update_of_a_row_that_is_gone_is_told_though_scripts_resolve_conflicts,
            scripting::a_row_that_its_script_does_not_delete_comes_back,
            scripting::a_row_of_which_a_script_ignores_the_delete_comes_back,
            scripting::a_delete_whose_script_finds_another_row_loses,
            scripting::an_update_that_a_script_of_sets_does_not_find_loses,
            scripting::what_a_script_sets_lives_for_the_sync,
            scripting::a_script_says_what_becomes_of_what_is_refused,
            scripting::a_time_that_would_lose_rows_is_not_taken,
            scripting::rows_are_uploaded_by_scripts,
            scripting::conflicts_are_found_and_resolved_by_scripts,
            scripting::rows_are_downloaded_by_their_time_as_scripts_do_it,
            scripting::a_row_of_nulls_takes_all_rows_of_the_table_from_the_remote,
            declaring_scripts::parameters_of_columns_have_their_type_where_none_follows,
            declaring_scripts::scripts_that_cannot_be_are_named,
            declaring_scripts::each_remote_has_the_version_that_it_asks_for,
            declaring_scripts::who_names_no_version_gets_round_no_script,
            taken_over::question_marks_stand_for_parameters_in_their_documented_order,
            taken_over::question_marks_that_stand_for_nothing_are_refused,
            taken_over::rows_go_before_deletes_and_events_stand_around_their_own_table,
            taken_over::conflicts_of_inserts_and_deletes_are_forced_where_no_script_writes_rows,
            taken_over::temporary_tables_of_earlier_scripts_are_there_when_scripts_are_read,
            taken_over::a_script_that_fails_is_passed_over_if_handle_error_says_so,
            taken_over::what_ends_a_sync_before_its_download_is_reported,
            taken_over::figures_of_a_sync_are_counted,
            script_sessions::what_a_version_leaves_in_a_session_no_other_sees,
            script_sessions::what_a_sync_leaves_in_its_session_is_there_up_to_its_end,
            script_sessions::a_script_that_fails_at_the_beginning_of_a_connection_leaves_nothing,
            script_sessions::a_row_that_a_script_does_not_give_is_not_shown,
            script_sessions::rows_that_a_remote_uploads_stay_when_a_script_gives_all_of_its_rows,
            script_sessions::a_row_that_is_asked_for_comes_by_the_script_of_its_table,
            script_sessions::a_script_that_fails_while_rows_are_downloaded_is_named,
            script_sessions::a_session_ends_with_a_deployment_and_with_a_failure,
            script_sessions::nobody_is_woken_by_a_table_of_which_a_script_says_who_gets_what,
            ranking::who_has_the_higher_rank_wins_over_who_wrote_the_centres_row,
            ranking::what_no_upload_has_written_is_the_centres_and_has_its_rank,
            ranking::a_rank_is_what_others_say_of_the_user,
            ranking::a_rank_that_cannot_be_is_refused_with_the_place,
            ranking::a_rank_that_is_no_number_is_told_with_its_table,
            resolving::updates_of_both_sides_end_as_their_resolver_says,
            resolving::what_one_side_deletes_and_the_other_changes_ends_as_its_resolver_says,
            resolving::rows_that_both_sides_insert_end_as_their_resolver_says,
            resolving::edits_of_different_columns_merge_by_themselves,
            resolving::a_row_that_resolves_to_what_the_centre_has_is_told,
            resolving::what_is_resolved_is_refused_as_anything_else,
            resolving::a_delete_that_wins_leaves_rows_with_children,
            resolving::resolvers_that_cannot_be_are_named,
            meeting::what_refers_to_an_insert_that_met_another_is_refused_with_it,
            meeting::an_upload_that_goes_in_whole_is_refused_with_an_order_that_met_another,
            meeting::lines_that_all_meet_others_are_refused_with_their_order,
            meeting::what_is_uploaded_later_under_a_refused_insert_is_refused,
            meeting::what_refers_to_a_refused_insert_that_the_centre_forgot_is_refused,
            meeting::an_order_under_a_new_key_takes_its_lines_along,
            meeting::lines_are_taken_when_the_order_is_replayed,
            meeting::what_is_below_a_refused_row_is_not_replayed_into_another_family,
            meeting::a_family_is_replayed_when_its_parent_is_in,
            meeting::an_operator_gives_no_refused_row_another_key_that_others_refer_to,
            meeting::equal_inserts_with_children_are_one,
            operating::a_replayed_row_is_written_by_its_scripts,
            operating::a_conflict_is_resolved_by_the_scripts_of_its_table,
            operating::a_replayed_row_is_judged_by_its_handler,
            operating::a_replayed_row_meets_the_resolver_of_its_table,
            operating::a_replayed_sum_is_a_difference,
            operating::a_sum_that_its_remote_sends_after_the_replay_waits_for_the_operator,
            operating::a_chosen_sum_counts_once,
            operating::a_chosen_sum_leaves_what_others_have_added_since,
            operating::a_chosen_difference_is_added_by_its_script,
            operating::a_handler_is_asked_of_a_chosen_difference,
            operating::a_sum_that_is_left_out_takes_nothing_from_others,
            operating::a_replay_by_force_does_not_mix_two_families,
            operating::a_forced_replay_writes_what_the_remote_had_changed,
            sums::equal_changes_of_several_remotes_add_up,
            sums::equal_changes_add_up_beside_edits_of_other_columns,
            sums::equal_inserts_of_several_remotes_add_up,
            sums::a_sum_that_a_check_forbids_is_refused_though_both_sides_agree,
            sums::equal_values_that_are_no_numbers_stay,
            sums::equal_changes_stay_equal_without_a_sum,
            sums::a_handler_is_asked_of_equal_changes,
            sums::conflict_scripts_are_run_for_equal_changes,
            sums::a_repeated_upload_of_a_sum_counts_once,
            sums::sums_that_are_given_back_count_once_each,
            sums::a_sum_that_a_copy_may_send_twice_waits_for_the_operator,
            sums::what_a_script_would_write_twice_of_a_copy_waits_for_the_operator,
            sums::what_a_script_has_added_to_others_changes_comes_with_a_download,
            sums::what_a_trigger_makes_of_a_sum_comes_with_a_download,
            sums::equal_inserts_of_a_file_and_its_copy_are_one,
            sums::sums_that_many_change_at_once_are_exact,
            settling::a_version_that_is_chosen_reaches_everybody,
            settling::a_row_that_is_gone_can_be_chosen_and_one_that_is_there_can_go,
            settling::what_was_resolved_by_rule_can_be_chosen_otherwise,
            settling::a_row_that_was_changed_since_is_not_written_over_unasked,
            settling::what_cannot_be_is_refused_with_its_reason,
            settling::conflicts_are_found_by_what_they_are,
            rejecting::a_refused_row_is_replayed_once_the_centre_takes_it,
            rejecting::a_replay_does_not_write_over_what_others_have_changed,
            rejecting::an_edit_that_still_fails_changes_nothing,
            rejecting::what_is_given_up_leaves_the_centres_row,
            rejecting::what_is_sent_again_is_settled_as_what_it_comes_to,
            rejecting::children_are_refused_with_their_parent_and_name_it,
            rejecting::an_upload_that_is_aborted_takes_no_effect,
            rejecting::a_dropped_column_is_not_the_cause_for_which_an_upload_is_aborted,
            rejecting::a_row_that_is_taken_without_a_dropped_column_closes_its_refusal,
            redeploying::what_is_deployed_is_served_whatever_was_configured,
            redeploying::where_nothing_is_deployed_nothing_is_served,
            redeploying::a_deployment_is_noticed_by_a_centre_that_serves,
            redeploying::a_download_that_a_deployment_overtakes_reads_nothing,
            redeploying::a_column_that_was_added_and_not_deployed_is_left_out,
            redeploying::a_copy_that_gets_a_name_of_its_own_knows_no_remotes,
            redeploying::triggers_of_the_application_know_who_uploads,
            redeploying::the_order_of_constraints_is_nothing_to_remotes,
            redeploying::a_new_column_sends_only_rows_in_which_it_has_another_value,
            refusing::rows_of_an_unpublished_table_are_refused_and_the_others_go_through,
            refusing::rows_with_a_column_that_changed_its_type_are_refused,
            refusing::rows_told_apart_by_another_key_are_refused,
            refusing::rows_without_a_new_partition_column_are_refused,
            refusing::a_column_that_is_not_published_any_more_is_ignored,
            refusing::a_child_of_a_refused_parent_does_not_attach_to_somebody_elses_row,
            refusing::what_refers_to_a_child_of_a_refused_parent_is_refused_too,
            sharing::what_everybody_gets_is_the_same_for_all_who_ask_together,
            sharing::one_poisonous_row_among_fifty_uploads_is_refused_alone,
            sharing::uploads_of_one_list_come_to_others_who_hold_the_rows,
            sharing::what_is_applied_by_itself_comes_to_those_that_shared,
            sharing::what_one_upload_of_a_list_may_not_write_keeps_no_other_out,
            sharing::an_upload_that_is_twice_in_a_list_takes_effect_once,
            sharing::downloads_of_one_snapshot_go_to_their_remotes,
            uploading::inserts_updates_and_deletes_take_effect,
            uploading::a_repeated_upload_is_applied_once_and_tells_the_same,
            uploading::an_upload_out_of_sequence_is_not_applied,
            uploading::one_upload_at_two_workers_takes_effect_once,
            uploading::of_two_updates_in_one_list_the_first_wins,
            uploading::every_kind_of_conflict_is_found,
            uploading::what_is_in_effect_already_is_no_conflict,
            uploading::what_the_centre_refuses_does_not_block_the_rest,
            scopes::rows_outside_of_the_scope_are_neither_touched_nor_shown,
            scopes::an_upload_whose_query_lost_its_table_is_not_taken,
            scopes::changes_of_a_lost_partition_are_taken_once,
            scopes::a_replayed_old_scope_is_refused,
            scopes::an_image_is_for_those_who_hold_all_of_its_partitions,
            scopes::a_scope_is_spent_when_the_next_one_was_presented,
            scopes::a_spent_scope_is_issued_anew_when_it_holds_again,
            scopes::a_scope_counts_while_the_next_one_was_lost_on_the_way,
            scopes::a_scope_counts_while_the_next_two_were_lost_on_the_way,
            uploading::what_triggers_change_beside_an_upload_is_sent,
            uploading::a_download_only_table_takes_no_changes,
            uploading::a_deferred_constraint_hits_only_its_own_upload,
            uploading::unique_values_can_be_freed_and_taken_in_one_upload,
            uploading::values_are_compared_by_their_type,
            uploading::an_upload_with_a_column_twice_fails_alone,
            checking::a_query_that_the_database_does_not_take_is_told_with_its_place,
            checking::a_procedure_that_the_database_does_not_take_is_told_with_its_place,
            uploading::columns_that_a_remote_does_not_know_are_left_alone,
            uploading::what_is_under_the_key_that_a_refused_move_wanted_arrives,
            uploading::sql_metacharacters_are_only_characters,
            waiting::an_open_transaction_stops_only_who_needs_what_it_holds,
            writing::rows_that_may_only_be_read_are_not_written,
            writing::what_may_be_written_is_judged_before_the_upload_and_at_its_end,
            writing::a_read_only_column_is_the_centres,
            writing::a_row_that_is_handed_over_leaves_with_the_same_sync,
            writing::a_row_of_a_lost_partition_can_be_handed_over_once,
            writing::what_follows_a_row_that_is_handed_over_goes_with_it,
            writing::an_older_row_that_a_device_makes_leaves_it_with_the_same_sync,
            writing::whose_a_row_is_that_the_centre_fills_shows_when_it_is_there,
            writing::what_nobody_could_write_so_is_named,
            scopes::regions_come_from_the_query_of_each_moment,
            setting::a_scope_follows_what_a_remote_sets,
            setting::what_a_remote_sets_is_only_text,
            setting::changes_of_what_a_remote_lets_go_are_taken_once,
            setting::what_a_user_may_not_ask_for_is_refused_to_her_alone,
            setting::parameters_that_cannot_be_are_refused_with_the_place,
        );
    };
    (@cases $fixture:ty; $($topic:ident::$case:ident,)*) => {
        $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::$topic::$case::<$fixture>().await;
                }
        )*
    };
}
