"""The book of access: what it does while the meta database is away, and when the use of tokens is written."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from structlog.testing import capture_logs

from foqs.host.access.book import STALE_MS, USED_EVERY_MS, USES_MAX, AccessBook
from foqs.host.access.snapshot import AccessSnapshot
from foqs.model import access_tokens
from foqs.model.access import AccessGrant, AccessMode, AccessRows, Credential, CredentialKind, PrincipalRow, TokenRow
from foqs.model.errors import UnavailableError

NOW = 1_700_000_000_000


class Tables:
    """A meta database that can be away."""

    def __init__(self) -> None:
        self.rows = AccessRows(AccessMode.OPEN, 0, (), (), ())
        self.is_away = self.refuses_writes = False
        self.reads_count = 0
        self.written: list[tuple[set[str], int]] = []

    def read(self, version: int, changed_at_ms: int) -> AccessRows | None:
        if self.is_away:
            raise UnavailableError("away")
        if (version, changed_at_ms) == (self.rows.version, self.rows.changed_at_ms):
            return None
        self.reads_count += 1
        return self.rows

    def note_used(self, token_ids: Collection[str], used_at_ms: int) -> None:
        if self.refuses_writes:
            raise UnavailableError("no writes")
        self.written.append((set(token_ids), used_at_ms))

    def give(self, count: int, used_at_ms: int = 0, mode: AccessMode = AccessMode.OPEN) -> None:
        """Let the principal `p` have so many tokens."""
        held = tuple(TokenRow(f"{at:012d}", "p", bytes(32), "", 1, "", 0, used_at_ms) for at in range(count))
        principal = PrincipalRow("p", True, (AccessGrant("ns", ("owner",)),), 1)
        self.rows = AccessRows(mode, self.rows.version + 1, (principal,), held, ())


class Clock:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def shown(at: int) -> Credential:
    return Credential("p", CredentialKind.TOKEN, f"{at:012d}", 0)


def turn(book: AccessBook) -> None:
    book.read()
    book.publish()
    book.write_uses()


def test_a_change_is_told_once_and_is_in_force_before_it_is_told() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    assert book.snapshot is AccessSnapshot.EMPTY
    turn(book)
    tables.give(1, mode=AccessMode.PERMISSIVE)
    book.read()
    assert book.snapshot.version == 1
    with capture_logs() as logs:
        book.publish()
    assert [(one["event"], one["mode"]) for one in logs] == [("access_mode_changed", "permissive")]
    with capture_logs() as logs:
        for _ in range(3):
            turn(book)
    assert logs == []
    assert tables.reads_count == 2


def test_a_database_that_went_back_is_read_although_its_version_is_known() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    tables.give(2)
    turn(book)
    tables.rows = tables.rows._replace(tokens=(), changed_at_ms=5)
    turn(book)
    assert not book.snapshot.has_token(shown(0).id)
    tables.rows = AccessRows(AccessMode.OPEN, 0, (), (), ())
    turn(book)
    assert book.snapshot.version == 0


def test_the_host_goes_on_with_what_it_knows_and_warns_once_after_10_s() -> None:
    tables, clock = Tables(), Clock()
    book = AccessBook(tables, clock)
    tables.give(1)
    turn(book)
    tables.is_away = True
    with capture_logs() as logs:
        for _ in range(4):
            clock.s += 3
            with pytest.raises(UnavailableError):
                book.read()
            book.tick()
        assert [one["event"] for one in logs] == ["access_stale"]
        assert book.stale_s == 12
        assert book.stale_s * 1000 > STALE_MS
        assert book.snapshot.principal(shown(0), NOW) is not None
        assert book.snapshot.principal(shown(0)._replace(id="gone"), NOW) is None
        tables.is_away = False
        turn(book)
        book.tick()
        book.tick()
    assert [one["event"] for one in logs] == ["access_stale", "access_fresh"]
    assert book.stale_s == 0


def test_the_use_of_a_token_is_written_once_an_hour_at_most() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    tables.give(3, used_at_ms=NOW - USED_EVERY_MS // 2)
    turn(book)
    book.note_used(shown(0), NOW)
    turn(book)
    turn(book)
    assert tables.written == [], "another host has noted it half an hour ago"
    for later_ms in range(0, USED_EVERY_MS, USED_EVERY_MS // 10):
        book.note_used(shown(0), NOW + USED_EVERY_MS + later_ms)
        turn(book)
    turn(book)
    assert tables.written == [({shown(0).id}, NOW + USED_EVERY_MS)]
    book.note_used(shown(0), NOW + 2 * USED_EVERY_MS)
    turn(book)
    turn(book)
    assert len(tables.written) == 2


def test_certificates_and_unknown_tokens_are_not_noted() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    tables.give(1)
    turn(book)
    book.note_used(Credential("p", CredentialKind.CERTIFICATE, shown(0).id, 0), NOW)
    book.note_used(shown(7), NOW)
    turn(book)
    turn(book)
    assert tables.written == []


def test_uses_that_wait_are_bounded_and_a_write_that_fails_is_repeated() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    tables.give(USES_MAX + 10)
    turn(book)
    tables.refuses_writes = True
    for at in range(USES_MAX + 10):
        book.note_used(shown(at), NOW)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            turn(book)
    assert not tables.written
    tables.refuses_writes = False
    turn(book)
    (written,) = tables.written
    assert len(written[0]) == USES_MAX
    book.note_used(shown(USES_MAX + 5), NOW + 1)
    turn(book)
    turn(book)
    assert tables.written[1:] == [({shown(USES_MAX + 5).id}, NOW + 1)]


def test_a_token_of_a_snapshot_is_that_of_its_text() -> None:
    tables = Tables()
    book = AccessBook(tables, Clock())
    text = access_tokens.new_token(bytes(access_tokens.RANDOM_BYTES))
    token = access_tokens.parse(text)
    row = TokenRow(token.id, "p", access_tokens.hash_of(token), "", 1, "", 0, 0)
    tables.give(0)
    tables.rows = tables.rows._replace(tokens=(row,))
    turn(book)
    assert book.snapshot.by_token(text, NOW) == Credential("p", CredentialKind.TOKEN, token.id, 0)
