"""Every variable that a session inherits was looked at: docs/decisions/0044-what-a-session-relies-on.md."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest
from pymysql.err import OperationalError

from foqs.dev.local_server import LocalServer
from foqs.storage.sessions import session_variables
from foqs.storage.sessions.session import connect

pytestmark = pytest.mark.database

DECISION = Path(__file__).parents[2] / "docs/decisions/0044-what-a-session-relies-on.md"

OF_NO_MATTER = re.compile(
    "|".join(
        (
            # Memory, and how rows are read, sorted and joined.
            "(aria|myisam|join|key|mrr|sort|read|range|query|preload|bulk_insert|rowid|transaction|tmp|max_heap)_.*",
            "(max_tmp|max_session_mem|max_rowid|max_seeks|max_length_for|eq_range|expensive|in_predicate|histogram)_?.*",
            "(use_stat|optimizer|analyze|column_compression|progress|profiling|thread_pool|parser|internal)_?.*",
            "(big_tables|sql_buffer_result|net_buffer_length|net_retry_count|tcp_nodelay|group_replication.*)",
            # What is logged or told.
            "(log|slow|long_query|min_examined|sql_log_off|sql_notes|sql_warnings|sql_quote|max_error|note)_?.*",
            "(lc_messages|lc_time_names|error_count|warning_count|show_.*|print_.*|userstat|performance_schema.*)",
            # Of statements, tables or servers that foqs does not use: DDL, views, procedures, replicas, other engines.
            "(alter|old|keep_files|updatable_views|system_versioning|standard_compliant|explicit_defaults|default)_?.*",
            "(auto_increment|binlog|deadlock|gtid|innodb|max_recursive|max_relay|max_sp|max_user|server_id|skip)_?.*",
            "(sql_if_exists|sql_slave_skip_counter|character_set|collation|debug|pseudo|rand_seed|wsrep|cte|ndb)_?.*",
            "(new|identity|last_insert_id|insert_id|version|hostname|require|resultset|secondary|session|windowing)_?.*",
            "(end_markers|explain|connection_memory|global_connection|rbr|information_schema)_.*",
            "(external_user|proxy_user|statement_id|block_encryption_mode|max_points_in_geometry)",
            "(generated|json|select_into|terminology|use_secondary|xa|immediate|original|sql_generate|sql_require)_?.*",
        )
    )
)
"""Names of variables that change nothing of what foqs relies on."""


def test_each_variable_of_a_session_was_looked_at(mysql_server: LocalServer) -> None:
    judged = set(re.findall(r"`([a-z_]+)`", DECISION.read_text()))
    with closing(mysql_server.connect()) as root, root.cursor() as cursor:
        cursor.execute("SHOW SESSION VARIABLES")
        there = {name for name, _ in cursor.fetchall()}
        cursor.execute("SHOW GLOBAL VARIABLES")
        before = dict(cursor.fetchall())
        cursor.execute("SELECT 1 FROM information_schema.tables WHERE table_name = 'SYSTEM_VARIABLES'")
        if cursor.fetchall():
            cursor.execute(
                "SELECT LOWER(variable_name) FROM information_schema.system_variables "
                "WHERE variable_scope LIKE 'SESSION%' AND read_only = 'NO'"
            )
            there = {name for (name,) in cursor.fetchall()}
        else:  # MySQL does not tell which variables a session has of its own.
            there -= {name for name in there if name in before and not _is_of_session(cursor, name)}
    left = {name for name in there - judged if OF_NO_MATTER.fullmatch(name) is None}
    assert left == set(), "say in the decision, and in set_variables, what these do"


def _is_of_session(cursor: object, name: str) -> bool:
    try:
        cursor.execute(f"SET SESSION {name} = @@SESSION.{name}")  # type: ignore[attr-defined]
    except OperationalError:
        return False
    return True


def test_the_decision_names_all_that_sessions_set_or_check() -> None:
    judged = set(re.findall(r"`([a-z_]+)`", DECISION.read_text()))
    given = {*session_variables.SET, *session_variables.SET_OF_MARIADB, *session_variables.SET_OF_MYSQL}
    checked = {re.sub(r".*@@([a-z_]+).*", r"\1", name) for name in session_variables.CHECKED}
    assert given | checked <= judged


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("SET sql_log_bin = 0", "sql_log_bin is 0"),
        ("SET timestamp = 1000000000", "the time of this session stands still"),
    ],
)
def test_what_a_session_cannot_set_is_checked(
    mysql_server: LocalServer, meta_url: str, monkeypatch: pytest.MonkeyPatch, statement: str, words: str
) -> None:
    """As `init_connect` or a proxy may have left it. Users who may do everything skip the first."""
    given = session_variables.set_variables

    def after_the_proxy(session: object, **how: object) -> None:
        with session.cursor() as cursor:  # type: ignore[attr-defined]
            cursor.execute(statement)
        given(session, **how)

    monkeypatch.setattr("foqs.storage.sessions.session.set_variables", after_the_proxy)
    with pytest.raises(session_variables.UnfitSessionError, match=words):
        connect(meta_url)


def test_a_server_that_takes_small_packets_alone_is_refused(mysql_server: LocalServer, meta_url: str) -> None:
    with closing(mysql_server.connect()) as root, root.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        ((before,),) = cursor.fetchall()
        cursor.execute("SET GLOBAL max_allowed_packet = 1048576")
        try:
            with pytest.raises(session_variables.UnfitSessionError, match="set it to 16M or more"):
                connect(meta_url)
        finally:
            cursor.execute("SET GLOBAL max_allowed_packet = %s", (before,))
