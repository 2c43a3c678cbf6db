"""A host's configuration as options, one per field of HostConfig, which alone checks them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from pydantic.fields import FieldInfo

from foqs.cli.output import Exit, leave, note
from foqs.config import (
    CONFIG_VARIABLE,
    ConfigError,
    HostConfig,
    LoadedConfig,
    load_config,
)
from foqs.config_urls import passwords_on_command_line


def host_command(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of HostConfig; its first argument is the effective LoadedConfig.

    If a value is invalid, print every problem and exit with USAGE.
    """

    @functools.wraps(command)
    def run(*, config: str | None, **arguments: Any) -> None:
        flags = {key: arguments.pop(key) for key in HostConfig.model_fields}
        command(_load(flags | {"shards": flags["shards"] or None}, config), **arguments)

    decorated: Callable[..., None] = run
    for key, field in reversed(HostConfig.model_fields.items()):
        decorated = _option(key, field.annotation, _help(field))(decorated)
    config_option = click.option("--config", metavar="FILE", help=f"TOML file with the same keys.  [{CONFIG_VARIABLE}]")
    return config_option(decorated)


def _help(field: FieldInfo) -> str:
    """Return the help text with the default in it. Click itself gets no default, because that would override the
    variable and the file.
    """
    if field.is_required():
        return f"{field.description}  [required]"
    if field.default_factory is not None:
        return field.description or ""
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default
    return f"{field.description}  [default: {default}]"


def _option(key: str, kind: object, description: str) -> Callable[..., Any]:
    flag = "--" + key.replace("_", "-")
    if key == "shards":
        return click.option(
            "--shard", key, metavar="ID=URL", multiple=True, help=description.replace("  [", "; may be repeated  [")
        )
    if kind is bool:
        return click.option(f"{flag}/--no{flag[1:]}", key, default=None, help=description)
    return click.option(flag, key, metavar="VALUE", help=description)


def _load(flags: dict[str, Any], path: str | None) -> LoadedConfig:
    try:
        if problems := passwords_on_command_line(flags):
            raise ConfigError(problems)
        loaded = load_config(flags, path)
        for warning in loaded.warnings:
            note(f"warning: {warning}")
        return loaded
    except ConfigError as error:
        for problem in error.problems:
            note(f"error: {problem}")
        leave(Exit.USAGE)
