"""Workloads as data: the files of loadtest/workloads, read into frozen dataclasses. A wrong key or value says where."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from foqs.model.limits import KEY_SPREAD_MAX

WORKLOADS_DIR = Path(__file__).resolve().parents[1] / "workloads"
STAMP_BYTES = 20
"""At the head of every payload, see bench/stamp.py."""

_STRICT = ConfigDict(extra="forbid")
_Count = Annotated[int, Field(ge=1)]
_Batch = Annotated[int, Field(ge=1, le=1_000)]
_Seconds = Annotated[float, Field(gt=0)]
_Share = Annotated[float, Field(ge=0, lt=1)]
Feature = Literal["priority", "delay", "lease", "batch", "nack_delay", "many_topics"]
Variant = Literal["full", "quick", "smoke"]


class ScenarioError(Exception):
    """A workload file that cannot be run: which file, where in it, and what is wrong."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Clients:
    """Processes of one kind. Each has `connections`, and on each of them so many calls in flight."""

    processes: _Count = 1
    connections: _Count = 1
    in_flight: _Count = 1
    batch: _Batch = 1
    """Items a call, unless the queue is better served by less (Adapter.batch_max)."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Producers(Clients):
    """Open loop when `items_per_s` (of all processes) is given: an item is due at its time, whatever the queue does.

    At most `in_flight` calls are open then too; what is due later waits in the producer, and its latency runs.
    Otherwise a closed loop: the next call begins when the last has been answered.
    """

    items_per_s: Annotated[float, Field(gt=0)] | None = None
    dedup_ids: Literal["none", "mixed", "by shard"] = "none"
    """Each item has one of its own; `by shard`: a call has items of one shard, as those of the client library do."""

    @model_validator(mode="after")
    def _is_due_when_it_is_sent(self) -> Self:
        if self.items_per_s is not None and self.dedup_ids == "by shard":
            raise ValueError("items that wait for others of their shard are not sent when they are due")
        return self


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Consumers(Clients):
    """Each call in flight goes round the topics: claim, ack, next topic. With many topics a claim it keeps to those."""

    wait_ms: Annotated[int, Field(ge=0, le=5_000)] = 20
    nack_share: _Share = 0.0
    nack_delay_ms: Annotated[int, Field(ge=0)] = 0
    topics_per_claim: _Count = 1


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Backlog:
    """Items that are there before the phase begins."""

    items: _Count
    due_in_s: _Seconds | None = None
    """All of them become due at one moment, so long after the first is enqueued; the phase begins a second before, or
    when its clients are ready."""
    rest_s: Annotated[float, Field(ge=0)] = 0.0
    """So long they lie before the phase begins."""
    is_written_to_tables: bool = False
    """Past the queue, as it would have left them, where its adapter can: for backlogs that take too long otherwise."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Fault:
    """A server process stands still for a while (SIGSTOP)."""

    server: str
    at_s: Annotated[float, Field(ge=0)]
    for_s: _Seconds


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Phase:
    """One measured stretch. It ends when its `items` are acked (enqueued, without consumers), or after `seconds`.

    After `seconds`, consumers go on until all that the producers enqueued in it is acked. Without both it ends when
    nothing is left.
    """

    producers: Producers | None = None
    consumers: Consumers | None = None
    backlog: Backlog | None = None
    items: _Count | None = None
    seconds: _Seconds | None = None
    restart: bool = False
    """Of the queue's own processes, between the backlog and the measured stretch."""
    fault: Fault | None = None
    events_per_mille: Annotated[int, Field(ge=0, le=1_000)] = 0
    """The share of items whose life is in the event log. Where no phase has any, there is no log."""

    @model_validator(mode="after")
    def _has_an_end(self) -> Self:
        if self.producers is None and self.consumers is None:
            raise ValueError("a phase needs producers or consumers")
        if self.items is not None and self.seconds is not None:
            raise ValueError("items and seconds exclude each other")
        if self.producers is not None and self.items is None and self.seconds is None:
            raise ValueError("producers need items or seconds")
        if self.producers is None and self.seconds is not None:
            raise ValueError("consumers alone end by items, or when nothing is left, not by seconds")
        return self


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class OfFoqs:
    """What is set up of foqs alone."""

    shards: _Count | None = None
    """Of a host, when not as many as it has otherwise."""
    key_spread: Annotated[int, Field(ge=1, le=KEY_SPREAD_MAX)] = 1
    """Over so many slots are the dedup ids spread, which lead to different shards."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Scenario:
    """A workload: what all its phases share, and the phases in the order in which one queue goes through them."""

    name: str
    title: str
    """What is in braces is filled in from this workload (str.format), so that it is right in every variant."""
    variant: Variant
    phases: dict[str, Phase]
    topics: _Count = 10
    payload_bytes: Annotated[int, Field(ge=STAMP_BYTES)] = 200
    priority_weights: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (1,) * 10
    """How often each priority from 0 on; queues without priorities take the items as they come."""
    delay_share: _Share = 0.0
    delay_ms: Annotated[int, Field(ge=0)] = 0
    lease_ms: _Count = 30_000
    """Of queues whose adapter lets it be set; the others have their own, of half a minute or more."""
    needs: frozenset[Feature] = frozenset()
    """What a queue must have for this workload to make sense on it."""
    foqs: OfFoqs = OfFoqs()
    until_saturated: bool = False
    """Leave out the phases after the first whose open loop offers more than the queue can do."""
    deadline_s: _Seconds = 600
    """For each phase; later the run has failed."""
    ratios: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Figures of phases by figures of others, each as `phase.figure`."""
    differences: dict[str, tuple[str, str]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.phases:
            raise ValueError("a workload needs a phase")
        if not sum(self.priority_weights):
            raise ValueError("all priority_weights are zero")
        for name, phase in self.phases.items():
            consumers = phase.consumers
            if consumers is not None and consumers.topics_per_claim > 1:
                calls = consumers.processes * consumers.connections * consumers.in_flight
                if calls * consumers.topics_per_claim < self.topics:
                    raise ValueError(f"phases.{name}: {calls} calls leave topics without a consumer")
        named = {place.rpartition(".")[0] for pair in (self.ratios | self.differences).values() for place in pair}
        if unknown := sorted(named - self.phases.keys()):
            raise ValueError(f"ratios or differences of phases that are not there: {', '.join(unknown)}")
        return self

    @property
    def has_events(self) -> bool:
        return any(phase.events_per_mille for phase in self.phases.values())

    @property
    def has_dedup_ids(self) -> bool:
        return any(phase.producers and phase.producers.dedup_ids != "none" for phase in self.phases.values())

    @property
    def topic_names(self) -> tuple[str, ...]:
        """Those of different workloads do not meet in one queue."""
        return tuple(f"{self.name}-{number}" for number in range(self.topics))


def names() -> list[str]:
    """Of all workloads, those with a number alone first."""
    return sorted((path.stem for path in WORKLOADS_DIR.glob("*.toml")), key=lambda name: (len(name) != 2, name))


def load(name: str, variant: Variant = "full") -> Scenario:
    """The workload of that name, in full, or with the changes of its `quick` or `smoke` table.

    A file may say `extends = "other"` and then holds only what differs. `base` holds what all phases have in
    common; `only` names the phases to run. Raises ScenarioError.
    """
    document = _document(name.lower())
    variants = {key: document.pop(key, {}) for key in ("quick", "smoke")}
    if variant != "full":
        document = _merged(document, variants[variant])
    return parse(document | {"name": name.lower(), "variant": variant})


def parse(document: dict[str, Any]) -> Scenario:
    """Raises ScenarioError."""
    name = document.get("name")
    document = dict(document)
    base, phases, only = document.pop("base", {}), document.pop("phases", {"all": {}}), document.pop("only", None)
    if unknown := sorted(set(only or ()) - phases.keys()):
        raise ScenarioError(f"workload {name}: only names phases that are not there: {', '.join(unknown)}")
    document["phases"] = {key: _merged(base, phase) for key, phase in phases.items() if only is None or key in only}
    if only is not None:
        for table in ("ratios", "differences"):
            document[table] = {
                key: pair
                for key, pair in document.get(table, {}).items()
                if all(place.rpartition(".")[0] in only for place in pair)
            }
    try:
        scenario = TypeAdapter(Scenario).validate_python(document)
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, part['loc'])) or 'it'}: {part['msg']}" for part in error.errors()]
        raise ScenarioError(f"workload {name}: {'; '.join(wrong)}") from error
    try:
        return replace(scenario, title=scenario.title.format_map(vars(scenario)))
    except (LookupError, AttributeError, ValueError, TypeError) as error:
        raise ScenarioError(f"workload {name}: title: {error} in {scenario.title!r}") from error


def _document(name: str) -> dict[str, Any]:
    path = WORKLOADS_DIR / f"{name}.toml"
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ScenarioError(f"no workload {name}: there are {', '.join(names())}") from error
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path.name}: {error}") from error
    other = document.pop("extends", None)
    return document if other is None else _merged(_document(other), document)


def _merged(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """Tables by key, everything else is replaced."""
    merged = dict(lower)
    for key, value in upper.items():
        is_table = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merged(merged[key], value) if is_table else value
    return merged
