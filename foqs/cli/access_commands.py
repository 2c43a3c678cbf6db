"""`foqs access ...`: who can call the cluster, and by which tokens and certificates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import Exit, leave, note, time_of
from foqs.cli.remote import Remote, confirmed, remote_command
from foqs.cli.token_file import TOKEN_FILE_HELP, write_new
from foqs.contract.permissions import ROLES
from foqs.model.access import TOKEN_LIFE_MS_MAX, AccessGrant, AccessMode, expired
from foqs.model.access_calls import AccessPrincipal, AccessState, AccessToken, NewToken
from foqs.model.limits import DAY_MS

EXPIRES_SOON_MS = 14 * DAY_MS
UNUSED_MS = 30 * DAY_MS
NEW_MS = DAY_MS
"""The age up to which a token need not have been used yet."""

_ROLE = click.Choice(list(ROLES))
_BY_LOGIN = ("init", "reset-admin")
"""The commands that need the packages of a host."""


class _AccessGroup(click.Group):
    """Imports the commands that log in to the meta database when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_BY_LOGIN, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BY_LOGIN:
            return super().get_command(ctx, cmd_name)
        try:
            module = import_module("foqs.cli.first_administrator")
        except ModuleNotFoundError as missing:
            if (missing.name or "foqs").partition(".")[0] == "foqs":
                raise
            note(f"error: foqs access {cmd_name} needs {missing.name}: pip install 'foqs[host]'")
            leave(Exit.USAGE)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(cls=_AccessGroup)
def access() -> None:
    """Say who can call: principals, grants, tokens and certificates."""


# ---- the cluster ----


@access.command()
@click.argument("new_mode", metavar="[MODE]", required=False, type=click.Choice(["open", "permissive", "enforced"]))
@remote_command
def mode(remote: Remote, new_mode: str | None) -> None:
    """Show or change how hosts take calls that grants do not permit.

    open: everybody can do everything. permissive: refusals are counted and logged, and the calls are done; see
    `foqs access refusals`. enforced: the calls are refused, which needs a principal with role admin and a token or
    certificate. A change takes effect within 2 s.
    """
    with remote.admin() as admin:
        state = admin.get_access() if new_mode is None else admin.set_access_mode(AccessMode[new_mode.upper()])
    _show_state(remote, state)


@access.command()
@remote_command
def refusals(remote: Remote) -> None:
    """List the calls that were refused, or would have been if access were enforced, the last first.

    Each host counts its own, up to 1,000 callers, verbs and namespaces since it started. Ask each by --address.
    """
    with remote.admin() as admin:
        found = admin.list_refusals()
    remote.output.document(found)
    remote.output.table(
        ["WHO", "VERB", "NAMESPACE", "TIMES", "LAST"],
        ((one.who, one.verb, one.namespace_name, one.times_count, time_of(one.last_at_ms)) for one in found),
    )


@access.command()
@remote_command
def check(remote: Remote) -> None:
    """Name everything that should be looked at; the exit code is 1 if that is anything.

    These are tokens that do not expire, that have expired or will within 14 days, and that were not used for 30 days,
    principals without a credential, and a cluster with less than two administrators.
    """
    now_ms = time.time_ns() // 1_000_000
    with remote.admin() as admin:
        state, tokens, principals = admin.get_access(), list(admin.list_tokens()), list(admin.list_principals())
    found = list(problems_of(state, tokens, principals, now_ms))
    remote.output.document([{"what": what, "problem": problem} for what, problem in found])
    remote.output.table(["WHAT", "PROBLEM"], found)
    if found:
        leave(Exit.FAILURE)


def problems_of(
    state: AccessState, tokens: Iterable[AccessToken], principals: Iterable[AccessPrincipal], now_ms: int
) -> Iterator[tuple[str, str]]:
    """Yield each thing that `foqs access check` names, with its problem."""
    if state.mode is not AccessMode.ENFORCED:
        yield "mode", f"{state.mode.name.lower()}: calls that are not permitted are done"
    if state.administrators_count < 2:
        yield (
            "administrators",
            f"{state.administrators_count}: if its token is lost, only foqs access reset-admin helps",
        )
    for one in tokens:
        for problem in _token_problems(one, now_ms):
            yield f"token {one.id} of {one.principal}", problem
    for principal in principals:
        if principal.enabled and not principal.tokens_count and not principal.certificates:
            yield f"principal {principal.name}", "has no token and no certificate, so nobody can be it"


def _token_problems(token: AccessToken, now_ms: int) -> Iterator[str]:
    if expired(token.expires_at_ms, now_ms):
        yield f"expired on {time_of(token.expires_at_ms)}: revoke it"
        return
    if not token.expires_at_ms:
        yield "does not expire"
    elif token.expires_at_ms - now_ms < EXPIRES_SOON_MS:
        yield f"expires on {time_of(token.expires_at_ms)}: make another one, use that, and revoke this"
    if not token.used_at_ms and now_ms - token.created_at_ms > NEW_MS:
        yield "was never used: revoke it if nobody has it"
    elif token.used_at_ms and now_ms - token.used_at_ms > UNUSED_MS:
        yield f"was not used since {time_of(token.used_at_ms)}: revoke it if nobody needs it"


def _show_state(remote: Remote, state: AccessState) -> None:
    remote.output.document(state)
    remote.output.table(
        ["MODE", "VERSION", "CHANGED", "PRINCIPALS", "GRANTS", "TOKENS", "CERTIFICATES", "ADMINISTRATORS"],
        [
            (
                state.mode.name.lower(), state.version, time_of(state.changed_at_ms), state.principals_count,
                state.grants_count, state.tokens_count, state.certificates_count, state.administrators_count,
            )
        ],
    )  # fmt: skip


# ---- principals and grants ----


@access.group()
def principal() -> None:
    """Create, list, disable and delete principals: programs, teams and people that call."""


@principal.command("create")
@click.argument("name")
@click.argument("namespaces", required=False)
@click.argument("roles", nargs=-1, type=_ROLE)
@remote_command
def create_principal(remote: Remote, name: str, namespaces: str | None, roles: tuple[str, ...]) -> None:
    """Create the principal NAME (1 to 64 of a-z 0-9 . _ -), with a grant of ROLES for NAMESPACES if they are given.

    NAMESPACES is as with `foqs access grant add`. Make a token for it by `foqs access token create NAME`.
    """
    grants = [] if namespaces is None else [AccessGrant(namespaces, roles)]
    with remote.admin() as admin:
        _show_principals(remote, [admin.create_principal(name, grants)])


@principal.command("list")
@click.option("--prefix", default="", help="Only names that begin so.")
@remote_command
def list_principals(remote: Remote, prefix: str) -> None:
    """List the principals with their grants and certificates."""
    with remote.admin() as admin:
        _show_principals(remote, list(admin.list_principals(prefix)))


@principal.command("disable")
@click.argument("name")
@remote_command
def disable(remote: Remote, name: str) -> None:
    """Let the credentials of the principal NAME prove nothing until it is enabled again. It keeps them."""
    with remote.admin() as admin:
        _show_principals(remote, [admin.update_principal(name, enabled=False)])


@principal.command("enable")
@click.argument("name")
@remote_command
def enable(remote: Remote, name: str) -> None:
    """Let the credentials of the principal NAME count again."""
    with remote.admin() as admin:
        _show_principals(remote, [admin.update_principal(name, enabled=True)])


@principal.command("delete")
@click.argument("name")
@remote_command
@confirmed()
def delete_principal(remote: Remote, name: str) -> None:
    """Delete the principal NAME with its grants, tokens and certificates."""
    with remote.admin() as admin:
        admin.delete_principal(name)
    remote.output.document({"deleted": name})


@access.group()
def grant() -> None:
    """Add and remove grants of principals."""


@grant.command("add")
@click.argument("name")
@click.argument("namespaces")
@click.argument("roles", nargs=-1, required=True, type=_ROLE)
@remote_command
def add_grant(remote: Remote, name: str, namespaces: str, roles: tuple[str, ...]) -> None:
    """Grant ROLES for NAMESPACES to the principal NAME, in the place of its grant for the same NAMESPACES.

    NAMESPACES is the name of a namespace, the beginning of names followed by '*', or '*' for all. The roles monitor,
    operator and admin hold in the whole cluster, so they are granted for '*'.
    """
    with remote.admin() as admin:
        _show_principals(remote, [admin.update_principal(name, added=[AccessGrant(namespaces, roles)])])


@grant.command("remove")
@click.argument("name")
@click.argument("namespaces")
@remote_command
def remove_grant(remote: Remote, name: str, namespaces: str) -> None:
    """End the grant of the principal NAME for NAMESPACES, which is written as it was granted."""
    with remote.admin() as admin:
        _show_principals(remote, [admin.update_principal(name, removed=[namespaces])])


def _show_principals(remote: Remote, found: list[AccessPrincipal]) -> None:
    remote.output.document(found)
    remote.output.table(
        ["PRINCIPAL", "ENABLED", "TOKENS", "CERTIFICATES", "GRANTS"],
        (
            (
                one.name, "yes" if one.enabled else "no", one.tokens_count,
                " ".join(shown.name for shown in one.certificates) or None,
                "; ".join(f"{grant.namespaces}: {', '.join(grant.roles)}" for grant in one.grants) or None,
            )
            for one in found
        ),
    )  # fmt: skip


# ---- credentials ----


@access.group()
def token() -> None:
    """Create, list and revoke tokens of principals."""


@token.command("create")
@click.argument("name")
@click.option("--label", default="", help="A text for people: what it is for.")
@click.option("--days", type=WholeNumber(1, TOKEN_LIFE_MS_MAX // DAY_MS), help="How long it lives.  [default: 90]")
@click.option("--no-expiry", is_flag=True, help="It does not expire; foqs access check names it.")
@click.option("--save-to", type=click.Path(dir_okay=False, path_type=Path), help=TOKEN_FILE_HELP)
@remote_command
def create_token(
    remote: Remote, name: str, label: str, days: int | None, no_expiry: bool, save_to: Path | None
) -> None:
    """Make a token of the principal NAME. It is shown this once; hosts keep a hash of it alone.

    To replace a token, make the second one, let the programs use it, see by `foqs access token list` that the first one
    is not used any more, and revoke that.
    """
    expires_in_ms = life_ms(days, no_expiry)
    with remote.admin() as admin:

        def make() -> NewToken:
            return admin.create_token(name, label=label, expires_in_ms=expires_in_ms)

        made = make() if save_to is None else write_new(save_to, make)
    if save_to is None:
        remote.output.document(made)
        remote.output.line(made.token)
    else:
        remote.output.document(made.info)
    expires = f"expires on {time_of(made.info.expires_at_ms)}" if made.info.expires_at_ms else "does not expire"
    note(f"token {made.info.id} of {name} {expires}; it is not shown again")


def life_ms(days: int | None, no_expiry: bool) -> int | None:
    """Return the life of a token by the options of its command, None for the usual one. Leaves if both are given."""
    if days is not None and no_expiry:
        note("error: --days and --no-expiry exclude each other: give one")
        leave(Exit.USAGE)
    return 0 if no_expiry else None if days is None else days * DAY_MS


@token.command("list")
@click.argument("name", default="")
@remote_command
def list_tokens(remote: Remote, name: str) -> None:
    """List the tokens of the principal NAME, or of all. USED is exact to the hour."""
    with remote.admin() as admin:
        found = list(admin.list_tokens(name))
    remote.output.document(found)
    remote.output.table(
        ["TOKEN", "PRINCIPAL", "LABEL", "CREATED", "BY", "EXPIRES", "USED"],
        (
            (
                one.id, one.principal, one.label or None, time_of(one.created_at_ms), one.created_by,
                time_of(one.expires_at_ms) or "never", time_of(one.used_at_ms),
            )
            for one in found
        ),
    )  # fmt: skip


@token.command("revoke")
@click.argument("token_id")
@remote_command
def revoke_token(remote: Remote, token_id: str) -> None:
    """Refuse the token TOKEN_ID from now on, on all hosts within 2 s."""
    with remote.admin() as admin:
        admin.revoke_token(token_id)
    remote.output.document({"revoked": token_id})


@access.group()
def certificate() -> None:
    """Add and remove the certificates of principals."""


@certificate.command("add")
@click.argument("name")
@click.argument("certificate_name")
@click.option("--label", default="", help="A text for people: what it is for.")
@remote_command
def add_certificate(remote: Remote, name: str, certificate_name: str, label: str) -> None:
    """Let client certificates with CERTIFICATE_NAME prove the principal NAME.

    CERTIFICATE_NAME is exactly one of the URIs or DNS names among the subject alternative names of the certificate. The
    common name of a certificate is never looked at.
    """
    with remote.admin() as admin:
        remote.output.document(admin.add_certificate(name, certificate_name, label=label))


@certificate.command("remove")
@click.argument("certificate_name")
@remote_command
def remove_certificate(remote: Remote, certificate_name: str) -> None:
    """Let certificates with CERTIFICATE_NAME prove nothing from now on, on all hosts within 2 s."""
    with remote.admin() as admin:
        admin.remove_certificate(certificate_name)
    remote.output.document({"removed": certificate_name})
