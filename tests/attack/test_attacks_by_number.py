"""The attacks that the design names, by their numbers, and the tests that make them: each of those is there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
OPEN = {11, 12}
"""Certificates of hosts. Hosts do not tell each other by certificates while the secret alone proves them."""
ATTACKS: dict[int, tuple[str, list[str]]] = {
    # Hosts.
    1: (
        "reflection of the proof to its maker",
        [
            "attack/test_proof.py::test_a_host_cannot_be_made_to_prove_itself_to_itself",
            "unit/test_peer_proof.py::test_the_search_finds_how_hello_and_prove_are_broken_by_reflection_and_by_relay",
            "unit/test_peer_proof.py::test_no_message_of_an_attacker_makes_it_a_host",
        ],
    ),
    2: ("relay over a second host", ["attack/test_proof.py::test_what_one_host_signs_is_of_no_use_at_another"]),
    3: ("replay of an old join", ["attack/test_proof.py::test_a_join_that_was_overheard_is_of_no_use_again"]),
    4: (
        "a greeting that means another host",
        [
            "attack/test_proof.py::test_whoever_means_another_host_or_says_to_be_this_one_is_refused",
            "attack/test_proof.py::test_a_stranger_that_greets_is_not_told_which_host_this_is",
        ],
    ),
    5: (
        "the id of the callee itself",
        ["attack/test_proof.py::test_whoever_means_another_host_or_says_to_be_this_one_is_refused"],
    ),
    6: (
        "the id of a dead host",
        ["attack/test_proof.py::test_a_host_that_is_dead_or_not_known_yet_is_told_to_try_again_and_shown_nothing"],
    ),
    7: ("join without greet", ["attack/test_proof.py::test_join_without_greet_is_refused"]),
    8: ("two greets", ["attack/test_proof.py::test_a_second_greet_is_refused_also_of_a_host_that_has_joined"]),
    9: (
        "greet after a call of a client",
        ["attack/test_proof.py::test_whoever_has_called_as_a_client_does_not_become_a_host"],
    ),
    10: ("1,000 greets a second", ["attack/test_proof.py::test_a_host_joins_at_once_however_many_strangers_greet"]),
    13: (
        "epoch 2^62",
        ["attack/test_claims.py::test_an_epoch_that_no_host_can_have_and_a_shard_that_there_is_not_change_nothing"],
    ),
    14: (
        "a shard that is told away and never confirmed",
        ["attack/test_claims.py::test_a_shard_that_was_told_away_is_back_after_its_time_and_told_of_in_log_and_metrics"],
    ),
    15: (
        "rates that are no numbers, and negative ones",
        [
            "attack/test_claims.py::test_a_rate_that_is_none_is_refused",
            "attack/test_claims.py::test_a_count_below_nothing_is_refused",
        ],
    ),
    16: (
        "one host that fills the tables of a home",
        [
            "attack/test_claims.py::test_caps_that_one_host_asks_about_take_no_place_from_others",
            "attack/test_claims.py::test_interests_of_one_host_take_no_place_from_others",
            "attack/test_claims.py::test_a_host_that_reports_any_number_of_topics_takes_no_place_from_others",
        ],
    ),
    17: ("a host that calls createNamespace", ["attack/test_proof.py::test_a_peer_calls_the_verbs_of_hosts_alone"]),
    # Databases.
    18: (
        "mysql_clear_password, plain and by TLS",
        [
            "unit/test_login.py::test_a_false_server_gets_no_password_by_any_plugin",
            "unit/test_login.py::test_the_driver_by_itself_shows_the_password",
        ],
    ),
    19: ("dialog", ["unit/test_login.py::test_a_false_server_gets_no_password_by_any_plugin"]),
    20: (
        "the full login of caching_sha2_password",
        [
            "unit/test_login.py::test_a_false_server_gets_no_password_by_any_plugin",
            "unit/test_login.py::test_a_name_that_only_happens_to_lead_to_loopback_is_not_a_loopback_address",
            "integration/test_logins_of_mysql.py::"
            "test_a_full_login_is_refused_where_nothing_proves_the_server_and_the_short_one_works",
        ],
    ),
    21: (
        "sha256_password, also in the greeting",
        [
            "unit/test_login.py::test_a_false_server_gets_no_password_by_any_plugin",
            "integration/test_logins_of_mysql.py::test_a_user_of_sha256_password_is_refused_by_name",
        ],
    ),
    22: (
        "a relay of the true server's challenge",
        [
            "unit/test_login.py::test_a_relayed_challenge_gets_an_answer_that_is_not_the_password",
            "integration/test_database_tls.py::test_a_server_of_another_authority_gets_no_session",
            "integration/test_database_tls.py::test_a_server_without_tls_gets_no_session_and_hears_no_name_and_no_password",
        ],
    ),
    23: (
        "a request for a file, LOCAL INFILE",
        [
            "unit/test_login.py::test_a_server_that_asks_for_a_file_gets_none_and_the_session_is_lost",
            "unit/test_login.py::test_no_session_offers_files",
        ],
    ),
    24: (
        "endless packets in the handshake",
        [
            "unit/test_login.py::test_a_server_that_says_too_much_is_not_listened_to",
            "unit/test_login.py::test_a_server_that_says_a_byte_now_and_then_is_given_up_in_time",
        ],
    ),
    25: (
        "a place outside the list, in a row that was forged",
        ["integration/test_where_hosts_log_in.py::test_a_forged_row_outside_the_list_leads_to_no_session"],
    ),
    26: (
        "a port scan by the texts and times of errors",
        [
            "attack/test_scans.py::test_a_shard_that_is_added_tells_nothing_of_what_listens_where",
            "unit/test_place_check.py::test_they_also_have_one_time",
        ],
    ),
    # Identities.
    27: (
        "a token that was revoked",
        [
            "attack/test_identities.py::test_a_revoked_token_ends_its_long_polls_and_its_connections_within_a_sweep",
            "attack/test_access_on_hosts.py::test_enforced_access_and_a_revocation_hold_on_all_hosts",
        ],
    ),
    28: (
        "a token that expires in a long poll",
        ["attack/test_identities.py::test_a_token_that_expires_in_a_long_poll_ends_it_although_meta_is_away"],
    ),
    29: (
        "a principal that is disabled while its calls run",
        ["attack/test_identities.py::test_the_calls_of_a_disabled_principal_that_run_are_done_and_no_others_begin"],
    ),
    30: (
        "a token over plain TCP",
        [
            "attack/test_identities.py::"
            "test_a_token_over_a_plain_connection_from_elsewhere_is_refused_whatever_the_mode",
            "integration/test_client_tokens.py::"
            "test_a_token_is_checked_before_it_is_sent_and_goes_to_this_machine_alone",
        ],
    ),
    31: (
        "the token of another on the connection of a certificate",
        ["attack/test_identities.py::test_a_token_of_another_on_the_connection_of_a_certificate_is_refused"],
    ),
    32: (
        "a token in logs, errors, reprs and tracebacks",
        [
            "attack/test_before_login.py::test_a_token_is_in_no_log_no_error_and_no_repr",
            "integration/test_planted_secrets.py::test_a_host_that_starts_works_reloads_and_ends_shows_it_nowhere",
            "integration/test_planted_secrets.py::test_tracebacks_with_local_values_do_not_show_it",
        ],
    ),
    33: (
        "a certificate of the right authority without a row",
        ["attack/test_identities.py::test_a_certificate_of_the_right_authority_without_a_row_proves_nothing"],
    ),
    34: (
        "a namesake of a namespace that was deleted",
        [
            "attack/test_identities.py::test_a_namesake_that_is_made_after_a_deletion_inherits_no_caller",
            "contract/test_meta_access.py::test_a_deleted_namespace_leaves_no_grant_to_one_of_the_same_name",
            "integration/test_access_of_hosts.py::test_a_deleted_namespace_takes_its_grants_with_it",
        ],
    ),
    35: (
        "10,000 wrong tokens a second",
        [
            "attack/test_sign_in_floods.py::"
            "test_a_flood_of_wrong_tokens_gets_few_answers_and_few_lines_and_the_right_token_is_taken",
            "attack/test_sign_in_floods.py::"
            "test_an_address_without_a_login_gets_few_answers_over_many_connections",
        ],
    ),
    # Permissions.
    36: (
        "each verb without each of its bits",
        [
            "attack/test_permissions_of_callers.py::"
            "test_a_verb_is_refused_without_any_single_one_of_its_bits_and_let_in_with_them",
            "unit/test_permissions.py::test_each_verb_needs_the_bits_that_the_decision_gives_it",
        ],
    ),
    37: (
        "what exists, by the text, the code and the time of refusals",
        [
            "attack/test_permissions_of_callers.py::"
            "test_a_refusal_is_the_same_character_by_character_whether_the_namespace_is_there_or_not",
            "attack/test_permissions_of_callers.py::"
            "test_only_whoever_holds_a_matching_grant_is_told_that_a_namespace_is_unknown",
            "unit/test_permissions.py::test_a_refusal_takes_the_same_work_whether_the_namespace_exists_or_not",
        ],
    ),
    38: (
        "ids, receipts, splits, jobs and page tokens of others",
        [
            "attack/test_foreign_ids.py::test_what_one_namespace_gave_is_of_no_use_in_another",
            "attack/test_access_on_hosts.py::test_ids_receipts_splits_and_jobs_of_another_namespace_lead_nowhere",
        ],
    ),
    39: (
        "an owner that raises its quota or changes its tier",
        ["attack/test_permissions_of_callers.py::test_an_owner_cannot_raise_its_quota_or_change_its_tier"],
    ),
    40: (
        "listNamespaces and its page tokens",
        ["attack/test_permissions_of_callers.py::test_a_list_shows_what_the_caller_may_observe_and_its_pages_are_full"],
    ),
    41: (
        "a namespace that is not the first field",
        [
            "attack/test_permissions_of_callers.py::"
            "test_the_namespace_that_the_front_of_a_frame_names_is_not_believed",
            "unit/test_permissions.py::test_no_other_field_than_the_namespace_can_name_the_namespace",
        ],
    ),
    42: (
        "the mode, switched without an administrator",
        [
            "contract/test_meta_access.py::test_enforced_access_always_has_an_administrator_that_can_show_it",
            "contract/test_meta_access.py::test_two_hosts_at_once_cannot_end_both_administrators",
        ],
    ),
    43: (
        "meta away during a revocation",
        ["attack/test_identities.py::test_while_meta_is_away_hosts_go_on_with_what_they_know"],
    ),
    # TLS.
    44: (
        "a handshake whose bytes come one by one",
        ["attack/test_tls.py::test_a_handshake_whose_bytes_come_one_by_one_has_no_more_time"],
    ),
    45: (
        "callers that connect and say nothing",
        [
            "attack/test_tls.py::test_who_opens_and_does_not_end_its_handshake_is_counted_and_turned_out",
            "attack/test_tls.py::test_handshakes_beyond_the_bound_are_refused_and_those_before_are_served",
        ],
    ),
    46: ("a chain of 600 certificates", ["attack/test_tls.py::test_a_chain_of_hundreds_of_certificates_is_refused"]),
    47: (
        "TLS 1.1, renegotiation, and new keys without end",
        [
            "attack/test_tls.py::test_old_versions_are_refused",
            "unit/test_tls_certificates.py::test_tickets_and_renegotiation_are_off_and_versions_bounded",
            "attack/test_tls.py::test_who_asks_for_new_keys_without_end_is_closed_and_does_not_hold_the_loop",
        ],
    ),
    48: (
        "a reload with half a pair",
        [
            "attack/test_certificates_that_change.py::"
            "test_half_a_pair_that_was_replaced_leaves_the_old_pair_served",
            "attack/test_tls_on_hosts.py::test_a_new_certificate_is_served_after_a_reload_without_a_failed_call",
        ],
    ),
    49: (
        "an end within a record",
        ["attack/test_tls.py::test_who_ends_its_side_within_a_record_is_closed_and_has_called_nothing"],
    ),
    50: (
        "a plain call where TLS is required",
        ["attack/test_tls.py::test_a_plain_caller_is_told_to_use_tls_where_it_is_required"],
    ),
}  # fmt: skip
"""What is tried, and the tests that try it."""


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the tests of a file."""
    tree = ast.parse((TESTS / path).read_text())
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    )


@pytest.mark.parametrize("number", ATTACKS)
def test_each_attack_has_its_tests(number: int) -> None:
    what, places = ATTACKS[number]
    assert what
    assert places
    for place in places:
        path, _, name = place.partition("::")
        assert name in names_in(path), f"attack {number} has lost its test {place}"


def test_no_number_is_left_out() -> None:
    assert sorted(ATTACKS) == sorted(set(range(1, 51)) - OPEN)
