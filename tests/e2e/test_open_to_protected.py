"""A cluster goes from open access to enforced access and TLS under load, by the guide of docs/security.md.

Each step is done, taken back and done again, and no call that a grant permits fails.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from foqs import AdminClient, Client, FoqsError, NotSentError
from foqs.cli.main import cli
from foqs.client.retry import RetryPolicy
from foqs.model import access_tokens
from foqs.model.errors import PermissionDeniedError, UnavailableError
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.certificates import Authority
from tests.support.databases import prepared_server
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.protecting_guide import Step, Stretch, exported, steps
from tests.support.steady_traffic import PATIENCE_S, Traffic, owned_count
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]

SHARDS = 4
NAMES = ("queue-a", "queue-b")
ONCE = RetryPolicy(deadline_ms=0)
CALM_ITEMS = 50
"""Consumed between one change and the next."""
PAUSE_S = 0.02
"""Of each producer between two calls: starts of hosts are to have the most of the machine."""


class Operator:
    """Runs two hosts that other machines could reach, and does what the guide says. `admin`: what its clients show."""

    def __init__(self, directory: Path, meta_url: str, shard_urls: dict[int, str], stack: ExitStack) -> None:
        self.directory = directory
        self.admin: dict[str, Any] = {}
        self.hosts: dict[str, HostProgram] = {}
        self._stack = stack
        self._meta_url, self._shard_urls = meta_url, shard_urls
        self.ports = {name: free_port() for name in NAMES}
        self._settings = {"allow_open": "true", "advertise_address": '"127.0.0.1"'}
        self._variables: dict[str, str] = {}
        authority = Authority(directory, "ca")
        for name in NAMES:
            authority.issue(name, hosts=["127.0.0.1"])
        self.ca_file = authority.ca_file
        (directory / "foqs.toml").write_text(f'meta_url = "{meta_url}"\n')
        for name in NAMES:
            self._start(name)
        until_true(lambda: self._owned_counts() == [SHARDS // 2] * len(NAMES), PATIENCE_S)
        with AdminClient(self.addresses) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports.values()]

    def follow(self, stretch: Stretch, traffic: Traffic) -> list[str]:
        """Do what a part of a step says; what its commands printed."""
        if stretch.programs is not None:
            traffic.roll(**stretch.programs)
        if stretch.settings:
            self._settings |= stretch.settings
            for name in NAMES:
                self._restart(name)
                traffic.go_on(consumed=CALM_ITEMS)
        printed = [self._run(command) for command in stretch.commands]
        traffic.go_on(consumed=CALM_ITEMS)
        return printed

    def _run(self, command: list[str]) -> str:
        for name in NAMES:
            command = [word.replace(f"{name}:7600", f"127.0.0.1:{self.ports[name]}") for word in command]
        if command[0] == "export":
            self._variables |= exported(command)
            self.admin = {
                "tls": True,
                "ca_file": self._variables["FOQS_CA_FILE"],
                "token_file": self._variables["FOQS_TOKEN_FILE"],
            }
            return ""
        done: list[Result] = []

        def is_done() -> bool:
            done.append(CliRunner().invoke(cli, command[1:], env=self._variables, prog_name="foqs"))
            # A host knows a new token within 2 s.
            assert done[-1].exit_code == 0 or "is not known here" in done[-1].output, f"{command}: {done[-1].output}"
            return done[-1].exit_code == 0

        until_true(is_done)
        return done[-1].stdout

    def _restart(self, name: str) -> None:
        self.hosts[name].signal(signal.SIGTERM)
        assert self.hosts[name].wait() == 0, self.hosts[name].output
        self._start(name)
        until_true(lambda: sum(self._owned_counts()) == SHARDS, PATIENCE_S)

    def _start(self, name: str) -> None:
        path = self.directory / f"{name}.toml"
        path.write_text("".join(f"{key} = {value}\n" for key, value in self._settings.items()).replace("queue-a", name))
        host = HostProgram(
            name, self.ports[name], self._meta_url, self._shard_urls, {"FOQS_CONFIG": str(path)}, listen="0.0.0.0"
        )
        host.address = f"127.0.0.1:{host.port}"
        self._stack.callback(host.close)
        self.hosts[name] = host

    def _owned_counts(self) -> list[int]:
        """The operator's clients have a token from step 2 on, and speak TLS wherever the hosts do."""
        options = self.admin if self._settings.get("tls", '"off"') != '"off"' else {}
        with suppress(UnavailableError):
            return [owned_count(host, retry=ONCE, **options) for host in self.hosts.values()]
        return []


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    with ExitStack() as stack:
        server = stack.enter_context(prepared_server(tmp_path / "mysql"))
        meta_url = server.create_database("meta")
        shard_urls = {number: server.create_database(f"shard_{number}") for number in range(SHARDS)}
        apply(meta_url, SchemaKind.META)
        for url in shard_urls.values():
            apply(url, SchemaKind.SHARD)
        directory = tmp_path / "etc"
        directory.mkdir()
        yield Operator(directory, meta_url, shard_urls, stack)


def fault_of(address: str, **options: Any) -> FoqsError | None:
    """What a caller with these options meets when it asks for the topics."""
    try:
        with Client(address, retry=ONCE, **options) as client:
            list(client.topics(NAMESPACE))
    except FoqsError as error:
        return error
    return None


def until_all_meet(operator: Operator, is_met: Callable[[FoqsError | None], bool], **options: Any) -> None:
    """Return when each host answers like that: shards may still move, and hosts follow a change within 2 s."""
    for address in operator.addresses:
        until_true(lambda address=address: is_met(fault_of(address, **options)))


def is_served(fault: FoqsError | None) -> bool:
    return fault is None


def is_refused(fault: FoqsError | None) -> bool:
    return isinstance(fault, PermissionDeniedError)


def is_told_of_tls(fault: FoqsError | None) -> bool:
    return fault is not None and "TLS" in fault.message


def is_not_heard(fault: FoqsError | None) -> bool:
    return isinstance(fault, NotSentError)


def shows_that_it_is_done(number: int, operator: Operator, printed: list[str]) -> None:
    """After step `number` the cluster is what the step is for, and callers without a token are served until step 4."""
    by_tls = {"tls": True, "ca_file": operator.ca_file}
    wrong = access_tokens.new_token(os.urandom(access_tokens.RANDOM_BYTES))
    if number == 1:
        until_all_meet(operator, is_served, **by_tls)
    if number == 2:
        until_true(lambda: "nobody" in callers_noted(operator))
        until_all_meet(operator, is_served, **by_tls)
        until_all_meet(operator, is_served, token_file=str(operator.directory / "billing.token"))
        until_all_meet(operator, is_refused, token=wrong)
    if number == 3:
        assert [text.splitlines()[1:] for text in printed] == [[], []], printed
    if number == 4:
        until_all_meet(operator, is_refused, **by_tls)
        until_all_meet(operator, is_refused)
    if number == 5:
        until_all_meet(operator, is_told_of_tls)
        until_all_meet(operator, is_refused, **by_tls)


def shows_that_it_is_taken_back(number: int, operator: Operator) -> None:
    if number == 1:
        until_all_meet(operator, is_not_heard, tls=True, ca_file=operator.ca_file)
    if number == 4:
        until_all_meet(operator, is_served)
    if number == 5:
        until_all_meet(operator, is_refused)  # Access is still enforced, and a plain caller is heard.


def callers_noted(operator: Operator) -> set[str]:
    """Those of whom a host has counted calls that it would refuse."""
    found = set()
    for address in operator.addresses:
        with AdminClient(address, **operator.admin) as admin:
            found |= {one.who for one in admin.list_refusals()}
    return found


def test_each_step_to_enforced_access_and_tls_is_done_taken_back_and_done_again_and_no_call_fails(
    operator: Operator,
) -> None:
    guide = steps(operator.directory)
    assert len(guide) == 5
    with Traffic(operator.addresses, pause_s=PAUSE_S) as traffic:
        traffic.go_on(consumed=CALM_ITEMS)
        for number, step in enumerate(guide, 1):
            _go(number, step, operator, traffic)
        traffic.end()
    output = "\n".join(host.output for host in operator.hosts.values())
    assert traffic.failures == [], output
    assert len(traffic.consumed) == len(set(traffic.consumed)), "an item was delivered twice"
    assert set(traffic.consumed) == traffic.enqueued


def _go(number: int, step: Step, operator: Operator, traffic: Traffic) -> None:
    operator.follow(step.once, traffic)
    shows_that_it_is_done(number, operator, operator.follow(step.do, traffic))
    assert step.back.settings or step.back.commands, f"{step.title}: no way back"
    if step.do.programs is not None:
        traffic.roll()
    operator.follow(step.back, traffic)
    shows_that_it_is_taken_back(number, operator)
    shows_that_it_is_done(number, operator, operator.follow(step.do, traffic))
    assert traffic.failures == [], step.title
