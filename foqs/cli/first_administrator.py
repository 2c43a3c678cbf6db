"""`foqs access init` and `reset-admin`: an administrator by the login to the meta database, without a host.

A login there can change everything already, so this needs no other proof.
"""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import click

from foqs.cli.access_commands import life_ms
from foqs.cli.host_options import host_command
from foqs.cli.login_audit import record_change
from foqs.cli.numbers import WholeNumber
from foqs.cli.output import note, time_of
from foqs.cli.token_file import TOKEN_FILE_HELP, write_new
from foqs.config import LoadedConfig
from foqs.model import access_tokens
from foqs.model.access import TOKEN_LIFE_MS_MAX, AccessMode, TokenRow, check_life_ms
from foqs.model.access_calls import AccessToken, NewToken
from foqs.model.audit import ENFORCE_ACCESS, MAKE_ADMINISTRATOR
from foqs.model.limits import DAY_MS
from foqs.storage.meta.meta_store import MetaStore

ADMINISTRATOR = "admin"
_TOKEN_FILE = click.option(
    "--token-file", required=True, type=click.Path(dir_okay=False, path_type=Path), help=TOKEN_FILE_HELP
)
_DAYS = click.option(
    "--days", type=WholeNumber(1, TOKEN_LIFE_MS_MAX // DAY_MS), help="How long the token lives.  [default: 90]"
)
_NO_EXPIRY = click.option("--no-expiry", is_flag=True, help="The token does not expire.")


_ENFORCE = click.option(
    "--enforce", is_flag=True, help="Also enforce access, so that a host can listen beyond its machine from the start."
)


@click.command()
@_TOKEN_FILE
@_DAYS
@_NO_EXPIRY
@_ENFORCE
@host_command
def init(loaded: LoadedConfig, token_file: Path, days: int | None, no_expiry: bool, enforce: bool) -> None:
    """Make the first administrator: the principal `admin`, with role admin and a token.

    It uses the login to the meta database (`meta_url`) and no host. It changes nothing if `admin` exists, and leaves
    the mode of access as it is without `--enforce`.
    """
    _make(loaded, token_file, life_ms(days, no_expiry), anew=False)
    if enforce:
        url = loaded.config.meta_url
        with closing(MetaStore(url)) as meta:
            meta.access.set_mode(AccessMode.ENFORCED, time.time_ns() // 1_000_000)
            record_change(meta, url, ENFORCE_ACCESS)
        note("access is enforced")


@click.command("reset-admin")
@_TOKEN_FILE
@_DAYS
@_NO_EXPIRY
@host_command
def reset_admin(loaded: LoadedConfig, token_file: Path, days: int | None, no_expiry: bool) -> None:
    """Reset the principal `admin` to role admin alone with one new token; its other credentials end.

    Use it when every administrator has lost its token. It uses the login to the meta database (`meta_url`) and no host.
    """
    _make(loaded, token_file, life_ms(days, no_expiry), anew=True)


def make_administrator(meta: MetaStore, token_file: Path, token_ms: int, *, anew: bool) -> AccessToken:
    """Create the principal ADMINISTRATOR with a token in a new file; with `token_ms` 0 the token does not expire.

    Raises AlreadyExistsError for the file and, unless `anew`, for the principal, and OSError if the file cannot be
    written.
    """
    now_ms = time.time_ns() // 1_000_000
    expires_at_ms = now_ms + token_ms if token_ms else 0

    def make() -> NewToken:
        text = access_tokens.new_token(os.urandom(access_tokens.RANDOM_BYTES))
        token = access_tokens.parse(text)
        row = TokenRow(
            token.id, ADMINISTRATOR, access_tokens.hash_of(token), "", now_ms, ADMINISTRATOR, expires_at_ms, 0
        )
        meta.access.make_administrator(row, now_ms, anew=anew)
        return NewToken(text, AccessToken.of(row))

    return write_new(token_file, make).info


def _make(loaded: LoadedConfig, token_file: Path, wanted_ms: int | None, *, anew: bool) -> None:
    token_ms = check_life_ms(wanted_ms)
    url = loaded.config.meta_url
    with closing(MetaStore(url)) as meta:
        made = make_administrator(meta, token_file, token_ms, anew=anew)
        changes = f"principal={ADMINISTRATOR} token={made.id} anew={str(anew).lower()}"
        record_change(meta, url, MAKE_ADMINISTRATOR, changes)
    expires = f"expires on {time_of(made.expires_at_ms)}" if made.expires_at_ms else "does not expire"
    note(f"{ADMINISTRATOR} can administer the cluster by token {made.id}, which is in {token_file} and {expires}")
