"""What `foqs schema` leaves with where several databases fail, each for another reason."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from foqs.cli import schema
from foqs.config import HostConfig
from foqs.model.errors import UnavailableError
from foqs.storage.schema import migrations
from foqs.storage.schema.migrations import MigrationError, SchemaKind, SchemaStatus

FLAGS = ["--meta-url", "mysql://u@h/meta", "--shard", "0=mysql://u@h/zero", "--shard", "1=mysql://u@h/one"]
"""Nobody asks these databases: what each says is told to `run`."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("CONFIG", *(name.upper() for name in HostConfig.model_fields)):
        monkeypatch.delenv(f"FOQS_{key}", raising=False)


def run(monkeypatch: pytest.MonkeyPatch, command: str, errors: dict[str, Exception]) -> Result:
    """Run the command where these databases fail, by their names, and the meta database knows no shard."""

    def asked(url: str) -> None:
        error = errors.get(url.rpartition("/")[2])
        if error is not None:
            raise error

    def status(url: str, kind: SchemaKind) -> SchemaStatus:
        asked(url)
        return SchemaStatus(url, (), (), ())

    def apply(database: schema._Database) -> list[object]:
        asked(database.url)
        return []

    monkeypatch.setattr(migrations, "status", status)
    monkeypatch.setattr(schema, "_apply", apply)
    if "meta" not in errors:
        monkeypatch.setattr(schema._Work, "_rows", lambda *_: [])
    return CliRunner().invoke(schema.schema, [command, *FLAGS])


AWAY, BROKEN = UnavailableError("it is away"), MigrationError("it was changed")


@pytest.mark.parametrize("command", ["apply", "status"])
@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ({}, 0),
        ({"zero": AWAY}, 5),
        ({"zero": BROKEN}, 1),
        ({"zero": AWAY, "one": BROKEN}, 1),
        ({"zero": BROKEN, "one": AWAY}, 1),
        # That the shards of a meta database that is away are not known ends when it is back.
        ({"meta": AWAY}, 5),
        ({"meta": AWAY, "one": BROKEN}, 1),
    ],
)
def test_a_lasting_failure_is_not_hidden_by_one_that_ends_by_itself(
    monkeypatch: pytest.MonkeyPatch, command: str, errors: dict[str, Exception], code: int
) -> None:
    result = run(monkeypatch, command, errors)
    assert result.exit_code == code, result.output
    if code:
        assert "error: " in result.output
