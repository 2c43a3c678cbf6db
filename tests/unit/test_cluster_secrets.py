"""The secrets of the cluster that a host knows, while one replaces another."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from foqs.cluster.peers.cluster_secrets import ENDED_CONNECTION_MS, ENDED_MAX, ENDED_PROOF_MS, ClusterSecrets
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.cluster_secret import (
    SECRET_ID_CHARS,
    ClusterSecret,
    HostSecrets,
    SecretState,
    not_ready,
    packed_ids,
    secret_id,
    unpacked_ids,
)
from foqs.model.errors import UnavailableError
from foqs.model.secret import Secret
from tests.support.peer_world import read_secrets

OLD, NEW, THIRD = Secret(b"o" * 32), Secret(b"n" * 32), Secret(b"t" * 32)


class Room:
    """A host, the rows of others, and a clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.rows: dict[str, HostRow] = {}
        self.secrets = ClusterSecrets(lambda: self.rows, lambda: self.now_s)

    def read(self, secret: Secret | None, coming: Secret | None = None) -> None:
        read_secrets(self.secrets, secret, coming)

    def told(self, *secrets: Secret) -> None:
        """The other host's row says that it knows these."""
        ids = tuple([secret_id(one) for one in secrets])
        self.rows["b#1"] = HostRow("b#1", "b:1", 1, 1, secret_ids=ids)

    def pass_ms(self, passed_ms: int) -> None:
        self.now_s += passed_ms / 1000

    @property
    def shown(self) -> Secret | None:
        known = self.secrets.for_host("b#1")
        return known[0].secret if known else None


@pytest.fixture
def room() -> Room:
    return Room()


def test_before_the_first_reading_nothing_is_shown_or_accepted(room: Room) -> None:
    assert (room.shown, room.secrets.current, list(room.secrets.accepted()), room.secrets.ids) == (None, None, [], ())


def test_newer_secrets_are_tried_behind_the_one_of_a_row_and_older_ones_never(room: Room) -> None:
    """Else somebody who knows a secret that is being replaced could refuse the next one and be believed."""
    room.read(OLD, NEW)
    room.told(OLD)
    assert [one.secret for one in room.secrets.for_host("b#1")] == [OLD, NEW]
    room.told(OLD, NEW)
    assert [one.secret for one in room.secrets.for_host("b#1")] == [NEW]
    room.read(NEW, THIRD)
    room.told(OLD)
    assert [one.secret for one in room.secrets.for_host("b#1")] == [OLD, THIRD, NEW]


def test_the_new_secret_is_shown_to_hosts_whose_rows_know_it_and_the_old_one_to_all_others(room: Room) -> None:
    room.read(OLD, NEW)
    assert room.shown == OLD, "a host without a row"
    room.told()
    assert room.shown == OLD, "a host of an older build"
    room.told(OLD)
    assert room.shown == OLD
    room.told(OLD, NEW)
    assert room.shown == NEW
    room.told(NEW)
    assert room.shown == NEW, "it has read the end, and this host has not"
    assert list(room.secrets.accepted()) == [OLD, NEW]


def test_an_ended_secret_is_accepted_and_shown_only_for_as_long_as_others_may_not_have_read_its_end(
    room: Room,
) -> None:
    room.read(OLD, NEW)
    room.read(NEW)
    room.told(OLD)
    assert (list(room.secrets.accepted()), room.shown) == ([NEW, OLD], OLD)
    assert room.secrets.ids == (secret_id(NEW),)
    room.pass_ms(ENDED_PROOF_MS - 1)
    room.read(NEW)
    assert list(room.secrets.accepted()) == [NEW, OLD]
    room.pass_ms(1)
    assert (list(room.secrets.accepted()), room.shown) == ([NEW], NEW)


def test_a_connection_of_an_ended_secret_takes_no_calls_and_lasts_as_long_as_a_call_can(room: Room) -> None:
    room.read(OLD, NEW)
    old = secret_id(OLD)
    assert (room.secrets.is_present(old), room.secrets.has_ended(old)) == (True, False)
    room.read(NEW)
    assert ENDED_CONNECTION_MS > limits.WAIT_MS_MAX + limits.CALL_MS_MAX
    room.pass_ms(ENDED_CONNECTION_MS - 1)
    assert (room.secrets.is_present(old), room.secrets.has_ended(old)) == (False, False)
    room.pass_ms(1)
    assert room.secrets.has_ended(old)
    assert room.secrets.has_ended("never known")
    assert not room.secrets.has_ended(secret_id(NEW))


def test_a_rotation_that_is_taken_back_ends_the_new_secret_like_an_old_one(room: Room) -> None:
    room.read(OLD, NEW)
    room.told(OLD, NEW)
    room.read(OLD)
    assert list(room.secrets.accepted()) == [OLD, NEW]
    assert room.shown == OLD, "others take both, and the one that stays comes first"
    room.pass_ms(ENDED_PROOF_MS)
    assert list(room.secrets.accepted()) == [OLD]
    room.read(OLD, NEW)
    assert list(room.secrets.accepted()) == [OLD, NEW], "the same secret comes again, as from a backup"
    assert not room.secrets.has_ended(secret_id(NEW))


def test_a_secret_that_is_replaced_without_warning_is_taken_like_any_other(room: Room) -> None:
    room.read(OLD)
    room.read(THIRD)
    room.told(OLD)
    assert (list(room.secrets.accepted()), room.shown) == ([THIRD, OLD], OLD)
    room.told(THIRD)
    assert room.shown == THIRD


def test_a_meta_database_that_is_away_or_has_no_secret_changes_nothing(room: Room) -> None:
    room.read(OLD, NEW)
    room.read(None)

    def fail() -> None:
        raise UnavailableError("away")

    away = SimpleNamespace(secrets=SimpleNamespace(read=fail))
    with pytest.raises(UnavailableError):
        room.secrets.read(away)  # type: ignore[arg-type]
    assert room.secrets.ids == (secret_id(OLD), secret_id(NEW))
    room.pass_ms(10 * ENDED_CONNECTION_MS)
    assert list(room.secrets.accepted()) == [OLD, NEW]


def test_the_memory_of_ended_secrets_is_bounded(room: Room) -> None:
    for number in range(ENDED_MAX + 10):
        room.read(Secret(number.to_bytes(32, "big")))
    assert len(room.secrets.accepted()) == 1 + ENDED_MAX
    room.pass_ms(ENDED_CONNECTION_MS)
    room.read(NEW)
    assert len(room.secrets._known.ended) == 1


def test_ids_fit_a_row_and_tell_nothing_of_a_secret() -> None:
    ids = ClusterSecret(OLD, NEW).ids
    assert [len(one) for one in ids] == [SECRET_ID_CHARS] * 2
    assert len(packed_ids(ids)) <= 64
    assert unpacked_ids(packed_ids(ids)) == ids
    assert unpacked_ids(b"") == ()
    assert len(unpacked_ids(b"a b c d " * 20)) == 2
    assert OLD.reveal().hex()[:SECRET_ID_CHARS] not in ids


@pytest.mark.parametrize(
    ("secret_ids", "state"),
    [
        ((), SecretState.OLDER_BUILD),
        ((secret_id(OLD),), SecretState.WAITING),
        ((secret_id(OLD), secret_id(NEW)), SecretState.READY),
        ((secret_id(OLD), secret_id(THIRD)), SecretState.WAITING),
    ],
)
def test_a_host_is_ready_if_its_row_has_the_newest_secret(secret_ids: tuple[str, ...], state: SecretState) -> None:
    host, secret = HostSecrets("b#1", 5, secret_ids), ClusterSecret(OLD, NEW)
    assert host.state(secret) is state
    assert not_ready([host], secret) == ([] if state is SecretState.READY else [host])
