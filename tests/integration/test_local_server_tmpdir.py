"""Private servers beside each other."""

from pathlib import Path

from tests.support.databases import new_server


def test_a_private_server_keeps_its_temporary_files_to_itself(tmp_path: Path) -> None:
    with new_server(tmp_path / "data") as server, server.connect() as session, session.cursor() as cursor:
        cursor.execute("SELECT @@tmpdir")
        assert Path(cursor.fetchone()[0]).is_relative_to(tmp_path / "data")
