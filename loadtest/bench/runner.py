"""One queue goes through the phases of one workload: what it did, and what that cost."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from loadtest.bench.clients import NEVER, READY, Gate, Job, Outcome, consume, produce
from loadtest.bench.figures import Ledger, Measured, RunError, measured
from loadtest.bench.scenario import Backlog, Fault, Phase, Producers, Scenario
from loadtest.bench.stamp import OF_BACKLOG
from loadtest.bench.usage import memory_mib, usages
from loadtest.peers.adapter import Adapter

Observe = Callable[[dict[str, int]], AbstractContextManager[object]]
"""Around each measured phase, with the server processes by name."""

_BEGIN_AFTER_NS = 50_000_000
_CONNECT_S_MAX = 60
_POLL_S = 0.01
_MEMORY_EVERY_S = 1.0
_SATURATED = 0.95
"""An open loop whose items are done at less than this part of its rate is beyond what the queue can do."""
_DUE_LEAD_NS = 1_000_000_000
_CLIENTS_LEAD_NS = 5 * _DUE_LEAD_NS


@runtime_checkable
class Fillable(Protocol):
    """An adapter that can write a backlog as its queue would have left it. Items have the numbers from 1 on."""

    def fill(self, topic: str, items_count: int, payload_bytes: int) -> None: ...


@runtime_checkable
class Restartable(Protocol):
    """An adapter that can stop and start the queue on the data it has."""

    def restart(self) -> int:
        """When the start began, in nanoseconds of the monotonic clock; returns when clients can connect."""
        ...


@runtime_checkable
class Countable(Protocol):
    def ready_count(self, topic: str) -> int:
        """Exact; waits until the queue knows."""
        ...


@runtime_checkable
class Configurable(Protocol):
    """An adapter that knows dedup ids and event logs, and is set up for a workload before it starts."""

    def configure(self, scenario: Scenario) -> None: ...

    def log_events(self, per_mille: int) -> None:
        """Of the items that are enqueued from now on."""
        ...


def unfit(scenario: Scenario, adapter: Adapter) -> str | None:
    """Why this workload makes no sense on that queue, if so."""
    if lacking := sorted(scenario.needs & adapter.lacks):
        return f"has no {', no '.join(lacking).replace('_', ' ')}"
    if not isinstance(adapter, Configurable):
        for is_needed, what in ((scenario.has_dedup_ids, "dedup ids"), (scenario.has_events, "event log")):
            if is_needed:
                return f"has no {what}"
    phases = scenario.phases.values()
    if any(phase.backlog and phase.backlog.is_written_to_tables for phase in phases) and not isinstance(
        adapter, Fillable
    ):
        return "a backlog of this size is not written to it in a reasonable time"
    if any(phase.restart for phase in phases) and not isinstance(adapter, Restartable):
        return "is not restarted by its adapter"
    return None


def run(scenario: Scenario, adapter: Adapter, observe: Observe | None = None) -> dict[str, Measured]:
    """Start the queue, go through all phases, stop it. By name of the phase. Raises RunError, and as the adapter."""
    with tempfile.TemporaryDirectory(prefix="foqs-bench-") as directory:
        Path(directory).chmod(0o755)  # Servers that run as users of their own must get in.
        if hasattr(adapter, "lease_ms"):
            adapter.lease_ms = scenario.lease_ms
        if isinstance(adapter, Configurable):
            adapter.configure(scenario)
        try:
            adapter.start(Path(directory), scenario.topic_names)
            return go_through(scenario, adapter, observe)
        finally:
            adapter.stop()


def go_through(scenario: Scenario, adapter: Adapter, observe: Observe | None = None) -> dict[str, Measured]:
    """As run, of a queue that is started and empty."""
    return _Run(scenario, adapter, observe or (lambda pids: nullcontext())).all_phases()


class _Run:
    def __init__(self, scenario: Scenario, adapter: Adapter, observe: Observe) -> None:
        self._scenario, self._adapter, self._observe = scenario, adapter, observe
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([produce.__module__, type(adapter).__module__])
        self._ledger = Ledger()
        self._begun_count = 0
        """Of client processes."""
        self._begun_ns = 0
        """Of the latest phase, its clients' first moment."""

    def all_phases(self) -> dict[str, Measured]:
        found: dict[str, Measured] = {}
        for name, phase in self._scenario.phases.items():
            due_ns = self._pre_load(phase.backlog) if phase.backlog is not None else None
            before = self._restart() if phase.restart else {}
            if self._scenario.has_events:
                assert isinstance(self._adapter, Configurable)
                self._adapter.log_events(phase.events_per_mille)
            with self._observe(self._adapter.pids()):
                found[name] = self._measure(phase, due_ns)
            found[name].figures |= before
            if self._scenario.until_saturated and found[name].figures.get("of_offered", 1.0) < _SATURATED:
                break
        return found

    def _pre_load(self, backlog: Backlog) -> int | None:
        """When its items are due, if not at once."""
        if backlog.is_written_to_tables:
            assert isinstance(self._adapter, Fillable)
            self._adapter.fill(self._scenario.topic_names[0], backlog.items, self._scenario.payload_bytes)
            self._ledger.add(backlog.items, backlog.items * (backlog.items + 1) // 2 + backlog.items * OF_BACKLOG)
            return None
        loading = Phase(producers=Producers(processes=2, in_flight=8, batch=1_000), items=backlog.items)
        due_in_ns = None if backlog.due_in_s is None else int(backlog.due_in_s * 1e9)
        self._measure(loading, number_flag=OF_BACKLOG, due_in_ns=due_in_ns)
        time.sleep(backlog.rest_s)
        return None if due_in_ns is None else self._begun_ns + due_in_ns

    def _restart(self) -> dict[str, float]:
        """Takes one item."""
        assert isinstance(self._adapter, Restartable)
        topic = self._scenario.topic_names[0]
        began_ns = self._adapter.restart()
        number = asyncio.run(_take_one(self._adapter, topic))
        figures = {"restart_to_first_item_s": (time.monotonic_ns() - began_ns) / 1e9}
        self._ledger.add(-1, -number)
        if isinstance(self._adapter, Countable):
            counted = self._adapter.ready_count(topic)
            if counted != self._ledger.held:
                raise RunError(f"the queue counts {counted} items where {self._ledger.held} must be")
            figures["restart_to_exact_counts_s"] = (time.monotonic_ns() - began_ns) / 1e9
        return figures

    def _measure(
        self, phase: Phase, due_ns: int | None = None, *, number_flag: int = 0, due_in_ns: int | None = None
    ) -> Measured:
        """`due_ns`: begin a little before. `due_in_ns`: what is enqueued is due so long after the beginning."""
        if due_ns is not None:  # Servers close connections that have sent nothing for long.
            time.sleep(max(0.0, (due_ns - _CLIENTS_LEAD_NS - time.monotonic_ns()) / 1e9))
        gate = Gate(self._context, phase.consumers.processes if phase.consumers else 0)
        results = self._context.Queue()
        processes = self._processes(phase, gate, results, number_flag, due_in_ns)
        for process in processes:
            process.start()
        try:
            for _ in processes:
                _receive(results, _CONNECT_S_MAX)
            self._begun_ns = _beginning_ns(due_ns)
            found = self._watch(phase, gate, results, processes)
            for process in processes:
                process.join(_CONNECT_S_MAX)
            return found
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join()
            results.close()

    def _processes(
        self, phase: Phase, gate: Gate, results: Any, number_flag: int, due_in_ns: int | None
    ) -> list[ForkServerProcess]:
        found = []
        for kind, main, clients in (("producer", produce, phase.producers), ("consumer", consume, phase.consumers)):
            for number in range(clients.processes if clients is not None else 0):
                self._begun_count += 1
                first_item = (self._begun_count << 40) | number_flag
                job = Job(self._adapter, self._scenario, phase, number, first_item, due_in_ns)
                found.append(self._context.Process(target=main, args=(job, gate, results), name=f"{kind}-{number}"))
        return found

    def _watch(self, phase: Phase, gate: Gate, results: Any, processes: list[ForkServerProcess]) -> Measured:
        """From the beginning to the end of a phase, and what it comes to."""
        producers_count = phase.producers.processes if phase.producers else 0
        if phase.consumers is not None and phase.items is not None:
            gate.target.value = phase.items
        elif phase.producers is None:
            gate.target.value = self._ledger.held
        pids = self._adapter.pids()
        memory = _Memory(pids)
        begin_ns = self._begun_ns
        deadline_ns = begin_ns + int((self._scenario.deadline_s + (phase.seconds or 0)) * 1e9)
        before = usages(pids)
        gate.begin_ns.value = begin_ns
        gate.begin.set()
        outcomes: list[Outcome] = []
        with _standing_still(phase.fault, pids, begin_ns) as look_at_fault:
            while not self._is_over(gate, outcomes, producers_count, phase):
                look_at_fault()
                memory.look()
                if time.monotonic_ns() > deadline_ns:
                    raise RunError(f"not done after {self._scenario.deadline_s:.0f} s: {gate.left()} items are left")
                if any(process.exitcode for process in processes):
                    raise RunError("a client died")
                if not results.empty():
                    outcomes.append(_receive(results, _CONNECT_S_MAX))
                time.sleep(_POLL_S)
        servers = {name: now.since(before[name]) for name, now in usages(pids).items()}
        while len(outcomes) < len(processes):
            outcomes.append(_receive(results, self._scenario.deadline_s))
        self._ledger.settle(outcomes)
        found = measured(phase, outcomes, begin_ns, servers)
        found.figures |= memory.figures()
        return found

    def _is_over(self, gate: Gate, outcomes: list[Outcome], producers_count: int, phase: Phase) -> bool:
        produced = [outcome for outcome in outcomes if outcome.kind == "producer"]
        if len(produced) < producers_count:
            return False
        if phase.consumers is None:
            return True
        if gate.target.value == NEVER:
            gate.target.value = self._ledger.held + sum(outcome.items for outcome in produced)
        return gate.left() <= 0


class _Memory:
    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._most = {name: memory_mib(pid) for name, pid in pids.items()}
        self._next_s = time.monotonic() + _MEMORY_EVERY_S

    def look(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _MEMORY_EVERY_S
            self._most = {name: max(most, memory_mib(self._pids[name])) for name, most in self._most.items()}

    def figures(self) -> dict[str, float]:
        self._next_s = 0
        self.look()
        return {f"{name}_mib_max": most for name, most in self._most.items()}


@contextmanager
def _standing_still(fault: Fault | None, pids: Mapping[str, int], begin_ns: int) -> Iterator[Callable[[], None]]:
    """The function that it gives is to be called again and again."""
    if fault is None:
        yield lambda: None
        return
    if fault.server not in pids:
        raise RunError(f"has no server {fault.server} that could stand still, but {', '.join(pids)}")
    pid, stop_ns = pids[fault.server], begin_ns + int(fault.at_s * 1e9)
    signals = [(stop_ns, signal.SIGSTOP), (stop_ns + int(fault.for_s * 1e9), signal.SIGCONT)]

    def look() -> None:
        while signals and time.monotonic_ns() >= signals[0][0]:
            os.kill(pid, signals.pop(0)[1])

    try:
        yield look
    finally:
        os.kill(pid, signal.SIGCONT)


async def _take_one(adapter: Adapter, topic: str) -> int:
    """The number of the item."""
    client = await adapter.connect(1)
    try:
        held = await client.claim([topic], 1, 30_000)
        if not held:
            raise RunError("no item within 30 s after the restart")
        await client.ack(held)
        return int.from_bytes(held[0].payload[8:16], "big")
    finally:
        await client.close()


def _receive(results: Any, seconds: float) -> Any:
    """A client's next message; RunError with what happened to it if it failed."""
    try:
        message = results.get(timeout=seconds)
    except queue.Empty:
        raise RunError(f"a client did not answer for {seconds:.0f} s") from None
    if isinstance(message, str) and message != READY:
        raise RunError(f"a client failed:\n{message}")
    return message


def _beginning_ns(due_ns: int | None) -> int:
    """Of a phase whose clients are ready."""
    soon_ns = time.monotonic_ns() + _BEGIN_AFTER_NS
    if due_ns is None:
        return soon_ns
    if soon_ns > due_ns:
        raise RunError("the backlog was due before the clients were ready: raise its due_in_s")
    return max(soon_ns, due_ns - _DUE_LEAD_NS)
