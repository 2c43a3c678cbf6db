"""The queues that can be measured, by name, and whether this machine has what they need. Nothing is imported early."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from loadtest.peers.adapter import Adapter
from loadtest.peers.program import NotInstalledError, find_program

_ADAPTERS = {
    "foqs": "foqs:Foqs",
    "foqs-compiled": "foqs:CompiledFoqs",
    "raw": "raw:Raw",
    "postgres": "postgres:Postgres",
    "postgres-plain": "postgres:PlainPostgres",
    "pgqueuer": "pgqueuer:PgQueuer",
    "mariadb": "mariadb:MariaDB",
    "rabbitmq": "rabbitmq:RabbitMQ",
    "beanstalkd": "beanstalkd:Beanstalkd",
    "redis": "redis:Redis",
}
_FORMS = {"foqs-enforced": "foqs:EnforcedFoqs", "foqs-protected": "foqs:ProtectedFoqs"}
"""Forms of foqs that are measured against foqs alone."""
_NEEDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "postgres": (("initdb", "postgres"), ("asyncpg",)),
    "postgres-plain": (("initdb", "postgres"), ("asyncpg",)),
    "pgqueuer": (("initdb", "postgres"), ("asyncpg", "pgqueuer")),
    "rabbitmq": (("rabbitmq-server",), ("pamqp",)),
    "beanstalkd": (("beanstalkd",), ()),
    "redis": (("redis-server",), ("hiredis",)),
}
"""Programs and Python packages. The others need what foqs itself needs."""


def names() -> list[str]:
    """foqs and plain SQL first."""
    return list(_ADAPTERS)


def forms() -> list[str]:
    """foqs in all its forms."""
    return ["foqs", "foqs-compiled", *_FORMS]


def installed(name: str) -> str | None:
    """None when it can be used, else what is missing. Raises KeyError when there is no such queue."""
    _ = (_ADAPTERS | _FORMS)[name]
    if name == "foqs-compiled":
        fault: str | None = import_module("loadtest.peers.foqs").compiled_fault()
        return fault
    programs, packages = _NEEDS.get(name, ((), ()))
    for program in programs:
        try:
            find_program(program)
        except NotInstalledError as error:
            return str(error)
    for package in packages:
        if find_spec(package) is None:
            return f"the Python package {package} is not installed (make peers installs it)"
    return None


def new_adapter(name: str) -> Adapter:
    """Raises NotInstalledError, and KeyError when there is no such queue."""
    if (missing := installed(name)) is not None:
        raise NotInstalledError(missing)
    module, _, adapter = (_ADAPTERS | _FORMS)[name].partition(":")
    made: Adapter = getattr(import_module(f"loadtest.peers.{module}"), adapter)()
    return made
