"""`foqs namespace ...`: tenants, their limits and defaults."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields
from enum import IntEnum
from typing import Any

import click

from foqs.cli.numbers import WholeNumber
from foqs.cli.output import note, time_of
from foqs.cli.remote import Remote, confirmed, remote_command
from foqs.cli.topic_policy import Rate, paused_settings, pausing_options, reason_option
from foqs.model.namespace import (
    SETTING_BOUNDS,
    SETTING_CHOICES,
    SETTING_RATES,
    SETTING_TEXTS,
    DedupScope,
    Namespace,
    NamespaceSettings,
)


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value or "-"
    if isinstance(value, float):
        return f"{value:g}"
    return value.name.lower() if isinstance(value, IntEnum) else str(value).lower()


class _Choice(click.Choice):  # type: ignore[type-arg]
    """One of the names of an enum, in lower case."""

    def __init__(self, kind: type[IntEnum]) -> None:
        super().__init__([one.name.lower() for one in kind], case_sensitive=False)
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> IntEnum:
        return self._kind[super().convert(value, param, ctx).upper()]


def _setting_options(command: Callable[..., None], *, has_defaults: bool = True) -> Callable[..., None]:
    """Add one option per field of NamespaceSettings; the values that are given arrive in the argument `settings`."""
    for field in reversed(fields(NamespaceSettings)):
        flag = "--" + field.name.replace("_", "-")
        bounds, choices = SETTING_BOUNDS.get(field.name), SETTING_CHOICES.get(field.name)
        help_text = f"default: {_text_of(field.default)}" if has_defaults else None
        if choices is not None:
            command = click.option(flag, type=_Choice(choices), help=help_text)(command)
        elif field.name in SETTING_RATES:
            command = click.option(flag, type=Rate(), metavar="NUMBER", help=help_text)(command)
        elif field.name in SETTING_TEXTS:
            command = click.option(flag, metavar="TEXT", help=help_text)(command)
        elif bounds is None:
            command = click.option(f"{flag}/--not{flag[1:]}", default=None, help=help_text)(command)
        else:
            command = click.option(flag, type=WholeNumber(*bounds), metavar="NUMBER", help=help_text)(command)
    return command


_changed_setting_options = functools.partial(_setting_options, has_defaults=False)
"""The same options without defaults, because a setting that is not given is left unchanged."""


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@click.group()
def namespace() -> None:
    """Create, list, show, change and delete namespaces."""


@namespace.command()
@click.argument("name")
@_setting_options
@remote_command
def create(remote: Remote, name: str, **settings: Any) -> None:
    """Create the namespace NAME."""
    with remote.admin() as admin:
        _show(remote, admin.create_namespace(name, **_given(settings)))


@namespace.command("list")
@click.option("--prefix", default="", help="Only namespaces with this prefix.")
@remote_command
def list_(remote: Remote, prefix: str) -> None:
    """List namespaces."""
    with remote.admin() as admin:
        found = list(admin.list_namespaces(prefix))
    remote.output.document([_document(one) for one in found])
    remote.output.table(
        ["NAMESPACE", "ENQUEUES/MIN", "PAUSED", "CREATED"],
        ((n.name, n.settings.enqueues_per_minute_max, _paused(n), time_of(n.created_at_ms)) for n in found),
    )


@namespace.command()
@click.argument("name")
@remote_command
def show(remote: Remote, name: str) -> None:
    """Show the settings of the namespace NAME."""
    with remote.admin() as admin:
        _show(remote, admin.get_namespace(name))


@namespace.command("set")
@click.argument("name")
@_changed_setting_options
@remote_command
def set_(remote: Remote, name: str, **settings: Any) -> None:
    """Change settings of the namespace NAME; other settings are left unchanged."""
    if not _given(settings):
        raise click.UsageError("name at least one setting to change")
    with remote.admin() as admin:
        _show(remote, admin.update_namespace(name, **_given(settings)))


@namespace.command()
@click.argument("name")
@pausing_options
@reason_option
@remote_command
def pause(remote: Remote, name: str, enqueue: bool, dequeue: bool, reason: str) -> None:
    """Pause the namespace NAME: enqueues, deliveries, or both if neither is named. Its items stay."""
    with remote.admin() as admin:
        changes = paused_settings(enqueue, dequeue, paused=True)
        _show(remote, admin.update_namespace(name, pause_reason=reason, **changes))


@namespace.command()
@click.argument("name")
@pausing_options
@remote_command
def resume(remote: Remote, name: str, enqueue: bool, dequeue: bool) -> None:
    """Resume the namespace NAME: enqueues, deliveries, or both if neither is named."""
    with remote.admin() as admin:
        changed = admin.update_namespace(name, **paused_settings(enqueue, dequeue, paused=False))
        settings = changed.settings
        if settings.pause_reason and not (settings.enqueue_paused or settings.dequeue_paused):
            changed = admin.update_namespace(name, pause_reason="")
        _show(remote, changed)


@namespace.command()
@click.argument("name")
@remote_command
@confirmed()
def delete(remote: Remote, name: str) -> None:
    """Delete the namespace NAME; refused while it holds items."""
    with remote.admin() as admin:
        admin.delete_namespace(name)
    remote.output.document({"deleted": name})
    note(f"deleted {name}")


@namespace.command()
@click.argument("number", type=WholeNumber(1))
@click.option("--name", help="Another name, if the old one was given to another namespace meanwhile.")
@click.option("--key-spread", type=WholeNumber(*SETTING_BOUNDS["key_spread"]), help="As it was; default: 1")
@click.option("--dedup-scope", type=_Choice(DedupScope), help="As it was; default: namespace")
@remote_command
def recover(
    remote: Remote, number: int, name: str | None, key_spread: int | None, dedup_scope: DedupScope | None
) -> None:
    """Bring back the namespace NUMBER, whose items shards hold and the meta database has lost.

    The log of the host that owns the shards names the number (unknown_namespace). Settings that are not given are the
    defaults.
    """
    with remote.admin() as admin:
        _show(remote, admin.recover_namespace(number, name, key_spread=key_spread, dedup_scope=dedup_scope))


def _document(one: Namespace) -> dict[str, object]:
    return {
        "name": one.name,
        "created_at_ms": one.created_at_ms,
        "state": _state(one),
        "settings": asdict(one.settings),
    }


def _show(remote: Remote, one: Namespace) -> None:
    rows: Iterable[tuple[str, object]] = (
        ("name", one.name),
        ("created", time_of(one.created_at_ms)),
        ("state", _state(one)),
        *((setting, _text_of(value)) for setting, value in asdict(one.settings).items()),
    )
    remote.output.document(_document(one))
    remote.output.table(["KEY", "VALUE"], rows)


def _state(one: Namespace) -> str:
    return "closing" if one.closing else "open"


def _paused(one: Namespace) -> str:
    paused = [verb for verb in ("enqueue", "dequeue") if getattr(one.settings, f"{verb}_paused")]
    return ", ".join(paused) or "no"
