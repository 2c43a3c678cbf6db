"""Defects of the audit: it leaves out what happened, tells what it must not, or holds calls up."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from foqs.contract import audited
from foqs.contract.audited import AUDITED, AuditKind
from foqs.host.audit import sums, trail
from foqs.host.audit.sums import AuditSums, RecordedAddresses, RecordedNames
from foqs.host.audit.trail import Audit
from foqs.model.audit import AuditNote, AuditRecord
from foqs.model.calls import CallContext
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError
from foqs.transport.sign_ins import SignIns
from tests.attack.seeding import a_test, found_by, in_place_of, of_audit

_audited = Audit.audited
_publish = Audit._publish
_record = Audit._record
_said = audited._said


@found_by(a_test("unit.test_audit:test_every_verb_that_changes_something_or_shows_payloads_is_audited"))
def does_not_record_a_verb() -> AbstractContextManager[Any]:
    rest = {verb: kind for verb, kind in AUDITED.items() if verb != "purgeDeadLetters"}
    return patch("tests.unit.test_audit.AUDITED", rest)


@found_by(a_test("unit.test_audit:test_every_verb_that_changes_something_or_shows_payloads_is_audited"))
def records_every_ack() -> AbstractContextManager[Any]:
    return patch.dict(AUDITED, ack=AuditKind.CHANGE)  # type: ignore[arg-type]


@in_place_of(
    Audit, "audited", of_audit("test_no_call_waits_for_the_meta_database_and_each_record_is_there_once_it_is_back")
)
async def waits_for_the_table(self: Audit, context: CallContext, verb: str, request: Any, call: Any) -> Any:
    result = await _audited(self, context, verb, request, call)
    try:
        await self._write()
    except Exception as error:
        raise AssertionError("the call has the error of the audit") from error
    return result


@in_place_of(
    Audit,
    "audited",
    of_audit(
        "test_a_call_that_fails_is_recorded_with_its_error_and_fails_as_without_audit",
        error=InvalidArgumentError("no"),
        outcome="INVALID_ARGUMENT",
    ),
)
async def records_before_the_outcome_is_known(
    self: Audit, context: CallContext, verb: str, request: Any, call: Any
) -> Any:
    record = self._record(context, verb, request, "OK", next(self._request_ids))
    self._add(AUDITED[verb], record, [])
    return await call(context, verb, request)


@in_place_of(trail, "_outcome_of", of_audit("test_the_refused_part_of_a_batch_is_counted"))
def does_not_count_what_was_refused(result: Any) -> str:
    return "OK"


@in_place_of(Audit, "_record", of_audit("test_a_change_is_recorded_with_who_where_what_and_how_it_ended"))
def leaves_out_the_credential(
    self: Audit, context: CallContext, verb: str, request: Any, outcome: str, request_id: str
) -> AuditRecord:
    return replace(_record(self, context, verb, request, outcome, request_id), credential="")


@in_place_of(audited, "_said", a_test("unit.test_audit:test_no_record_of_any_request_tells_a_payload_or_metadata"))
def tells_payloads(request: Any, is_wanted: Any) -> Any:
    yield from _said(request, is_wanted)
    for name in audited._fields_of(request):
        value = getattr(request, name)
        if isinstance(value, bytes):
            yield f"{name}={value!r}"


@in_place_of(
    audited, "_shown", a_test("unit.test_audit:test_a_token_that_was_pasted_where_its_id_is_asked_for_is_not_recorded")
)
def tells_a_token_that_was_pasted(value: object) -> str:
    return repr(value)


@found_by(
    a_test(
        "unit.test_audit:test_a_login_in_an_address_is_not_recorded",
        "mysql://foqs:s3cr3t@db-1:3306/shard7",
        "mysql://***@db-1:3306/shard7",
    )
)
def tells_the_login_in_an_address() -> AbstractContextManager[Any]:
    return patch.object(audited, "_without_secrets", lambda text: text)


@in_place_of(Audit, "refused", of_audit("test_refusals_of_one_caller_are_summed_up_and_say_nothing_of_what_exists"))
def does_not_record_refusals(
    self: Audit, context: CallContext, verb: str, request: Any, error: PermissionDeniedError
) -> None:
    error.request_id = next(self._request_ids)


@in_place_of(
    RecordedNames, "name_of", of_audit("test_a_caller_that_makes_up_namespaces_fills_neither_the_log_nor_the_table")
)
def keeps_every_name_that_a_caller_makes_up(self: RecordedNames, record: AuditRecord) -> str:
    return record.namespace_name


@found_by(a_test("unit.test_audit:test_open_windows_are_bounded_and_the_oldest_ends_early"))
def keeps_any_number_of_windows() -> AbstractContextManager[Any]:
    return patch.object(sums, "WINDOWS_MAX", 1 << 40)


@in_place_of(AuditSums, "end_all", of_audit("test_the_end_of_a_host_writes_the_sums_of_open_windows"))
def forgets_open_sums_at_the_end(self: AuditSums) -> Any:
    self._windows.clear()
    return iter(())


@found_by(of_audit("test_places_are_kept_for_changes_however_many_sums_wait"))
def lets_sums_take_the_places_of_changes() -> AbstractContextManager[Any]:
    def tell(self: Audit, record: AuditRecord, count: int, took_ms: int, waiting_max: int = 0) -> None:
        _publish(self, record, count, took_ms, trail.WAITING_MAX)

    return patch.object(Audit, "_publish", tell)


@in_place_of(
    RecordedAddresses,
    "recorded",
    a_test(
        "attack.test_audited_sign_ins:"
        "test_strangers_with_any_number_of_addresses_fill_neither_the_log_nor_the_table_nor_the_memory"
    ),
)
def names_every_address(self: RecordedAddresses, address: str) -> str:
    return address


@in_place_of(
    Audit,
    "_publish",
    a_test("attack.test_audited_sign_ins:test_refused_sign_ins_leave_room_for_the_records_of_callers_who_are_somebody"),
)
def lets_strangers_take_the_places_of_changes(self: Audit, record: AuditRecord, *_: object) -> None:
    if len(self._waiting) < trail.WAITING_MAX:
        self._waiting.append(record)


@in_place_of(
    SignIns,
    "refused",
    a_test("attack.test_audited_sign_ins:test_each_kind_of_refused_sign_in_is_recorded_with_its_reason"),
)
def records_no_principal_of_a_refused_token(
    self: SignIns, address: str, outcome: str, principal: str = "", shown: str = "", subject: str = ""
) -> None:
    self._note_refusal(AuditNote("signIn", outcome, "nobody", shown, address, subject))
