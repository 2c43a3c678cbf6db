"""Migrations on a server that goes away: whoever asked for them is told so, and goes on with the next database."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pymysql
import pytest

from foqs.storage.schema import migrations
from foqs.storage.schema.migrations import MigrationError, SchemaKind

URL = "mysql+pymysql://root@127.0.0.1/foqs_lost"


@pytest.mark.parametrize("work", [migrations.apply, migrations.status])
def test_a_session_that_is_lost_is_an_error_that_names_the_database(monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    """`foqs schema` reports such an error, and goes on with the next database."""
    session = Mock()
    session.cursor.side_effect = pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")
    monkeypatch.setattr(migrations, "_connect", lambda url, **_: session)
    with pytest.raises(MigrationError, match=r"foqs_lost.*Lost connection"):
        work(URL, SchemaKind.SHARD)
    session.close.assert_called()
