"""Contexts: named ways to reach a cluster, in a file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from foqs.client.addresses import parse_addresses
from foqs.client.own_tls import OwnTls
from foqs.model import limits
from foqs.model.access_tokens import TOKEN_CHARS, TOKEN_PREFIX
from foqs.model.errors import InvalidArgumentError, shown
from foqs.model.namespace import is_namespace_name

DEFAULT_KEY: Final = "default"
"""The key at the top of the file for the context to use if none is named."""
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NAMES_ALLOWED: Final = f"1 to 64 of A-Z a-z 0-9 _ -, but not {DEFAULT_KEY}"
_CONTEXTS_NAMED_MAX: Final = 20

_FILES: Final = ("ca_file", "cert_file", "key_file", "token_file")
_ALLOWED: Final = {
    "addresses": 'a text "HOST:PORT,HOST:PORT", or a list of texts "HOST:PORT"',
    "tls": "true, false",
    "ca_file": "the path of a PEM file",
    "server_name": "a text, the name in the certificates of the hosts",
    "cert_file": "the path of a PEM file",
    "key_file": "the path of a PEM file",
    "token_file": "the path of a file with a token",
    "namespace": f"the name of a namespace, 1 to {limits.NAMESPACE_NAME_CHARS_MAX} of A-Z a-z 0-9 . _ -",
}
"""The keys of a context, and what each allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedContext:
    """The hosts of a cluster, how they are verified, and how they know the caller. It has paths and no secrets."""

    name: str
    addresses: str
    """Each HOST:PORT, separated by commas."""
    tls: bool = False
    ca_file: str = ""
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    namespace: str = ""

    def arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a client: those of the context, where `given` has no other ones.

        A given token replaces the token of the context, and a given certificate its certificate with the key.
        """
        own: dict[str, Any] = {"addresses": self.addresses, "tls": self.tls}
        own |= {key: getattr(self, key) for key in (*_FILES, "server_name") if getattr(self, key)}
        if "token" in given or "token_file" in given:
            own.pop("token_file", None)
        if "cert_file" in given:
            own.pop("cert_file", None)
            own.pop("key_file", None)
        return own | dict(given)


@dataclass(frozen=True, slots=True)
class NamedContexts:
    """The contexts of one file."""

    path: Path
    default: str = ""
    """The name of the default context; it need not be one of the contexts."""
    by_name: Mapping[str, NamedContext] = field(default_factory=dict)

    def named(self, name: str | None = None) -> NamedContext:
        """Return the context of this name, or the default one. Raises InvalidArgumentError with the known ones."""
        if name is None and not self.default:
            raise InvalidArgumentError(
                f"{self.path} has no default context: name one, or run foqs context use NAME; {self._known()}"
            )
        found = self.by_name.get(self.default if name is None else name)
        if found is None:
            problem = f"default = {shown(self.default)} is" if name is None else f"{shown(name)} is"
            raise InvalidArgumentError(f"{problem} no context of {self.path}; {self._known()}")
        return found

    def _known(self) -> str:
        names = list(self.by_name)
        more = f", ... ({len(names)} in all)" if len(names) > _CONTEXTS_NAMED_MAX else ""
        return f"known: {', '.join(names[:_CONTEXTS_NAMED_MAX])}{more}" if names else "it has none"


def parsed_contexts(path: Path, content: bytes) -> NamedContexts:
    """Return the contexts of a file's content. Raises InvalidArgumentError with all problems.

    No problem repeats a value, because a token can have been pasted there.
    """
    import tomllib  # Not with every client: it takes milliseconds.

    try:
        document = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # A number can be too long, and brackets too deep.
        what = "it has too many brackets within each other" if isinstance(error, RecursionError) else str(error)
        raise InvalidArgumentError(f"{path} is not TOML: {what}") from None
    problems: list[str] = []
    by_name: dict[str, NamedContext] = {}
    default = ""
    for key, value in document.items():
        if isinstance(value, dict):
            if found := _context(path, key, value, problems):
                by_name[key] = found
        elif key == DEFAULT_KEY and isinstance(value, str):
            default = value
        elif key == DEFAULT_KEY:
            problems.append(f"{key} is {_kind(value)}; allowed: the name of a context")
        else:
            hint = ", in which this key belongs" if key in _ALLOWED else ""
            problems.append(
                f"{shown(key)} is no key outside of a table; allowed: {DEFAULT_KEY}, and tables [NAME]{hint}"
            )
    if problems:
        raise InvalidArgumentError("; ".join(f"{path}: {problem}" for problem in problems))
    return NamedContexts(path, default, by_name)


def _context(path: Path, name: str, table: Mapping[str, Any], problems: list[str]) -> NamedContext | None:
    """Return the context of a table, or None if it has problems, which are added."""
    found = [f"[{name}] {problem}" for problem in _problems(table)]
    if name == DEFAULT_KEY or not _NAME.fullmatch(name):
        found.insert(0, f"[{shown(name)}] is no name of a context; allowed: {_NAMES_ALLOWED}")
    if not found:
        values: dict[str, Any] = {key: _path(path, value) if key in _FILES else value for key, value in table.items()}
        addresses = values["addresses"]
        values["addresses"] = addresses if isinstance(addresses, str) else ",".join(addresses)
        values["tls"] = values.get("tls", False) or any(key in values for key in (*_FILES[:3], "server_name"))
        try:
            return _checked(NamedContext(name=name, **values))
        except InvalidArgumentError as error:
            found = [f"[{name}] {error.message}"]
    problems += found
    return None


def _problems(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of single keys of a context."""
    import difflib  # Not with every client.

    for key, value in table.items():
        if key not in _ALLOWED:
            near = difflib.get_close_matches(key, _ALLOWED, n=1)
            meant = f", did you mean {near[0]}?" if near else ""
            secret = " A token belongs in a file of its own: token_file." if key == "token" else ""
            yield f"{shown(key)} is no key{meant}; allowed: {', '.join(_ALLOWED)}.{secret}".removesuffix(".")
        elif not _fits(key, value):
            yield f"{key} is {_kind(value)}; allowed: {_ALLOWED[key]}"
        elif key in _FILES and value.startswith(TOKEN_PREFIX) and len(value) == TOKEN_CHARS:
            yield f"{key} is a token, and not a path; allowed: {_ALLOWED[key]}"
    if "addresses" not in table:
        yield f"addresses is missing; allowed: {_ALLOWED['addresses']}"
    if table.get("tls") is False and (files := [key for key in (*_FILES[:3], "server_name") if key in table]):
        yield f"tls = false is given with {files[0]}; allowed: true, or no key for TLS"


def _fits(key: str, value: object) -> bool:
    """True if the value has a type and a form that the key allows."""
    if key == "tls":
        return isinstance(value, bool)
    if key == "addresses" and isinstance(value, list):
        return bool(value) and all(isinstance(one, str) and "," not in one for one in value)
    if not isinstance(value, str) or not value or not value.isprintable():
        return False
    return key != "namespace" or is_namespace_name(value)


def _kind(value: object) -> str:
    """Name the type of a value, and never the value itself."""
    if isinstance(value, str):
        return "an empty text" if not value else "a text of another form"
    names = {bool: "true or false", int: "a number", float: "a number", list: "a list of another form", dict: "a table"}
    return names.get(type(value), "a date or a time")


def _path(of: Path, value: str) -> str:
    """Return the path that is meant: ~/ is the user's home, and a relative one begins where the file is."""
    try:
        meant = Path(value).expanduser() if value.startswith("~/") else Path(value)
    except RuntimeError:
        raise InvalidArgumentError(f"{value} cannot be found: this user has no home directory") from None
    return str(of.parent / meant)


def _checked(context: NamedContext) -> NamedContext:
    """Raise InvalidArgumentError for values that contradict each other, as the arguments of a client do."""
    parse_addresses(context.addresses)
    OwnTls(
        context.tls, ca_file=context.ca_file or None, server_name=context.server_name or None,
        cert_file=context.cert_file or None, key_file=context.key_file or None,
    )  # fmt: skip
    return context


def with_default(text: str, name: str) -> str:
    """Return the text of a file of contexts with another default context; all else stays as it is.

    Only blank lines, comments and the old default can stand above the first table, so only these lines are read.
    """
    lines = re.findall(r"[^\n]*\n|[^\n]+", text)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    new = f'{DEFAULT_KEY} = "{name}"'
    for number, line in enumerate(_above_tables(lines)):
        if re.match(rf"\s*[\"']?{DEFAULT_KEY}[\"']?\s*=", line):
            comment = re.search(r"[\"'](\s*#.*)$", line.rstrip("\r\n"))
            lines[number] = new + (comment[1] if comment else "") + line[len(line.rstrip("\r\n")) :]
            return "".join(lines)
    return f"{new}{end}{end if lines and lines[0].strip() else ''}{text}"


def _above_tables(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.lstrip().startswith("["):
            return
        yield line
