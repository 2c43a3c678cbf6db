"""A server's clock is read the same in every time zone, also in one where an hour comes twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing

import pytest

from foqs.dev.local_server import LocalServer
from foqs.storage.schema import statements as sql
from foqs.storage.sessions.session import connect

pytestmark = pytest.mark.database

AUTUMN_S = 1_700_000_000
"""When daylight saving ends in the zone: the clocks on the walls go back by an hour."""
HOUR_S = 3_600
ZONE = "Test/Autumn"
_MAKE_ZONE = (
    "REPLACE INTO mysql.time_zone (time_zone_id, use_leap_seconds) VALUES (9999, 'N')",
    "REPLACE INTO mysql.time_zone_name (name, time_zone_id) VALUES ('Test/Autumn', 9999)",
    "REPLACE INTO mysql.time_zone_transition_type (time_zone_id, transition_type_id, `offset`, is_dst, abbreviation) "
    "VALUES (9999, 0, 3600, 0, 'STD'), (9999, 1, 7200, 1, 'DST')",
    "REPLACE INTO mysql.time_zone_transition (time_zone_id, transition_time, transition_type_id) "
    f"VALUES (9999, {AUTUMN_S - 180 * 24 * HOUR_S}, 1), (9999, {AUTUMN_S}, 0)",
)


@pytest.fixture
def server_in_zone(mysql_server: LocalServer, shard_urls: Mapping[int, str]) -> Iterator[LocalServer]:
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        for statement in _MAKE_ZONE:
            cursor.execute(statement)
        cursor.execute("SELECT @@GLOBAL.time_zone")
        ((before,),) = cursor.fetchall()
        cursor.execute(f"SET GLOBAL time_zone = '{ZONE}'")
        try:
            yield mysql_server
        finally:
            cursor.execute("SET GLOBAL time_zone = %s", (before,))


def shown_ms(session: object, at_s: int) -> int:
    """What the statement says when the server's clock shows `at_s`."""
    with session.cursor() as cursor:  # type: ignore[attr-defined]
        cursor.execute(f"SET timestamp = {at_s}")
        cursor.execute(sql.NOW_MS)
        ((found_ms,),) = cursor.fetchall()
        return int(found_ms)


@pytest.mark.parametrize("at_s", range(AUTUMN_S - 2 * HOUR_S, AUTUMN_S + 2 * HOUR_S + 1, HOUR_S // 2))
def test_the_clock_of_a_shard_goes_on_through_the_end_of_daylight_saving(
    server_in_zone: LocalServer, shard_urls: Mapping[int, str], at_s: int
) -> None:
    with closing(connect(shard_urls[0])) as session:
        assert shown_ms(session, at_s) == at_s * 1000


def test_a_session_that_sets_no_zone_would_have_an_hour_twice(server_in_zone: LocalServer) -> None:
    """So that the test above shows something."""
    with closing(server_in_zone.connect()) as session:
        shown = [shown_ms(session, AUTUMN_S + offset_s) for offset_s in (-HOUR_S // 2, HOUR_S // 2)]
    assert shown[0] == shown[1]
