"""The statements on the tables of access take the index that they should, with as many rows as there can be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import delete, text, update
from sqlalchemy.dialects import mysql

from foqs.model.access import PRINCIPALS_MAX
from foqs.storage.meta import meta_access as sql
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.meta.meta_tables import ACCESS_CERTIFICATE, ACCESS_GRANT, ACCESS_PRINCIPAL, ACCESS_TOKEN

pytestmark = [pytest.mark.database, pytest.mark.deep]

_NAMES = [b"p000005", b"p000999"]
_PAGE = [ACCESS_PRINCIPAL.c.name > b"p000005", ACCESS_PRINCIPAL.c.name >= b"p0", ACCESS_PRINCIPAL.c.name < b"p0\xff"]
CASES: dict[str, tuple[Any, str, int]] = {
    "the state": (sql.READ_STATE, "", 1),
    "the state, locked": (sql.LOCK_STATE, "", 1),
    "one principal": (sql.READ_PRINCIPALS.where(ACCESS_PRINCIPAL.c.name == _NAMES[0]), "PRIMARY", 1),
    "a page of principals": (sql.READ_PRINCIPALS.where(*_PAGE).limit(101), "PRIMARY", PRINCIPALS_MAX),
    "the grants of some": (sql.READ_GRANTS.where(ACCESS_GRANT.c.principal.in_(_NAMES)), "PRIMARY", 20),
    "who is granted everything": (sql.GRANTED_EVERYWHERE, "access_grant_by_namespaces", 20),
    "a grant of a deleted namespace": (
        delete(ACCESS_GRANT).where(ACCESS_GRANT.c.namespaces == b"ns7"), "access_grant_by_namespaces", 20,
    ),
    "the grants of a deleted principal": (
        delete(ACCESS_GRANT).where(ACCESS_GRANT.c.principal == _NAMES[0]), "PRIMARY", 20,
    ),
    "one token": (delete(ACCESS_TOKEN).where(ACCESS_TOKEN.c.id == b"t00000000005"), "PRIMARY", 1),
    "the use of tokens": (
        update(ACCESS_TOKEN).where(ACCESS_TOKEN.c.id.in_([b"t00000000005", b"t00000000006"])).values(used_at=1),
        "PRIMARY", 4,
    ),
    "the tokens of a principal": (
        sql.READ_TOKENS.where(ACCESS_TOKEN.c.id > b"", ACCESS_TOKEN.c.principal == _NAMES[0]).limit(9),
        "access_token_by_principal", 20,
    ),
    "a page of tokens": (
        sql.READ_TOKENS.where(ACCESS_TOKEN.c.id > b"t00000000005").limit(9), "PRIMARY", PRINCIPALS_MAX,
    ),
    "the certificates of a principal": (
        sql.READ_CERTIFICATES.where(ACCESS_CERTIFICATE.c.principal.in_(_NAMES)), "access_certificate_by_principal", 20,
    ),
    "one certificate": (
        delete(ACCESS_CERTIFICATE).where(ACCESS_CERTIFICATE.c.name == b"foqs://p000005"), "PRIMARY", 1,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plans(databases_of_session: Any) -> Iterator[dict[str, dict[str, Any]]]:
    databases_of_session.wipe()
    with (
        closing(MetaStore(databases_of_session.meta_url)) as meta,
        meta._sessions.transaction() as connection,
    ):
        many = range(PRINCIPALS_MAX)
        connection.execute(
            ACCESS_PRINCIPAL.insert(), [{"name": f"p{at:06d}".encode(), "enabled": 1, "created_at": 1} for at in many]
        )
        connection.execute(
            ACCESS_GRANT.insert(),
            [
                {
                    "principal": f"p{at:06d}".encode(),
                    "namespaces": b"*" if at == 7 else f"ns{at}".encode(),
                    "roles": b"admin",
                }
                for at in many
            ],
        )
        common = {"label": b"", "created_at": 1, "created_by": b"admin"}
        connection.execute(
            ACCESS_TOKEN.insert(),
            [
                {"id": f"t{at:011d}".encode(), "principal": f"p{at:06d}".encode(), "hash": bytes(32), "expires_at": 0,
                 "used_at": 0, **common}
                for at in many
            ],
        )  # fmt: skip
        connection.execute(
            ACCESS_CERTIFICATE.insert(),
            [{"name": f"foqs://p{at:06d}".encode(), "principal": f"p{at:06d}".encode(), **common} for at in many],
        )
        for table in (ACCESS_PRINCIPAL, ACCESS_GRANT, ACCESS_TOKEN, ACCESS_CERTIFICATE):
            connection.execute(text(f"ANALYZE TABLE {table.name}")).all()
        found: dict[str, dict[str, Any]] = {}
        for name, (statement, _, _) in CASES.items():
            compiled = statement.compile(dialect=mysql.dialect(), compile_kwargs={"render_postcompile": True})
            driver = connection.connection.driver_connection
            assert driver is not None
            with driver.cursor() as cursor:
                arguments = [compiled.params[key] for key in compiled.positiontup or ()]
                cursor.execute(f"EXPLAIN {compiled.string}", arguments)
                columns = [one[0] for one in cursor.description]
                (row,) = cursor.fetchall()
                found[name] = dict(zip(columns, row, strict=True))
        yield found
    databases_of_session.wipe()


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_statement_takes_its_index_and_reads_no_more_than_it_must(
    name: str, plans: dict[str, dict[str, Any]]
) -> None:
    _, key, rows_max = CASES[name]
    plan = plans[name]
    if key:
        assert plan["key"] == key, plan
    assert int(plan["rows"]) <= rows_max, plan


def test_every_named_statement_is_among_them() -> None:
    named = {
        name
        for name in vars(sql)
        if name.isupper() and name not in ("T", "P") and hasattr(getattr(sql, name), "compile")
    }
    tables = {
        "ACCESS",
        "ACCESS_PRINCIPAL",
        "ACCESS_GRANT",
        "ACCESS_TOKEN",
        "ACCESS_CERTIFICATE",
        "NAMESPACE",
        "SERVER_NOW_MS",
    }
    assert {one for one in named - tables if not one.startswith("_")} == {
        "READ_STATE", "LOCK_STATE", "READ_PRINCIPALS", "READ_GRANTS", "READ_TOKENS", "READ_CERTIFICATES",
        "GRANTED_EVERYWHERE",
    }  # fmt: skip
