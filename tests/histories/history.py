"""What clients asked and what they were answered, as the checker wants it.

A call is noted when it is made and completed when its answer is there, so a client that dies in between leaves a
call without an answer: its outcome is unknown, which is the truth. Times are milliseconds since the epoch by the
monotonic clock of the machine, rounded outward: a call began no earlier and ended no later than its record says.
(The record is that of Jepsen: invoked, then ok, fail or info. K. Kingsbury, jepsen-io/jepsen.)
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import IO, Any, NamedTuple

_NS_PER_MS = 1_000_000
_EPOCH_NS = time.time_ns() - time.monotonic_ns()
_DIGEST_CHARS = 16


class Verb(StrEnum):
    ENQUEUE = "enqueue"
    DEQUEUE = "dequeue"
    ACK = "ack"
    NACK = "nack"
    EXTEND = "extend"


class Outcome(StrEnum):
    OK = "ok"
    FAIL = "fail"
    """Refused: certainly without effect."""
    INFO = "info"
    """Unknown: no answer, or one that says that nobody knows."""


class Put(NamedTuple):
    """One item of an enqueue call. `uid` names it whatever becomes of the call; metadata is in hex."""

    uid: str
    topic: str
    priority: int = 0
    deliver_after_ms: int | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None
    metadata: str = ""
    at_most_once: bool = False
    dedup_id: str = ""
    ordering_key: str = ""


class Taken(NamedTuple):
    """One delivery. `uid` is "" when the payload is not whole."""

    receipt: str
    uid: str
    topic: str
    priority: int
    deliver_after_ms: int
    lease_expires_at_ms: int
    attempt: int
    metadata: str = ""
    ordering_key: str = ""


class Settled(NamedTuple):
    """One receipt of an ack, nack or extend; `lease_ms` is the extension's."""

    receipt: str
    delay_ms: int = 0
    metadata: str | None = None
    release: bool = False
    dead_letter: bool = False
    lease_ms: int = 0


@dataclass(slots=True)
class Call:
    """One call. `asked`: Put, Settled or the topics of a dequeue; `ids` and `taken` are its answer.

    `outcome` is that of the positions which `others` does not name, `error` the name of the code it failed with.
    """

    client: str
    number: int
    verb: Verb
    asked: Sequence[Any]
    invoked_at_ms: int
    returned_at_ms: int | None = None
    outcome: Outcome = Outcome.INFO
    ids: Sequence[str] = ()
    taken: Sequence[Taken] = ()
    others: dict[int, Outcome] = field(default_factory=dict)
    error: str = ""
    duplicates: Sequence[int] = ()
    """Positions that were answered with the id of an item that was there before."""

    def outcome_at(self, position: int) -> Outcome:
        return self.others.get(position, self.outcome)

    def lines(self) -> list[str]:
        """As it stands in a file: that it began and, if it did, how it ended."""
        if self.returned_at_ms is None:
            return [self._line_of_begin()]
        return [self._line_of_begin(), self._line_of_end()]

    def _line_of_begin(self) -> str:
        return _line([self.client, self.number, self.verb, self.invoked_at_ms, self.asked])

    def _line_of_end(self) -> str:
        answer = [self.outcome, self.ids, self.taken, list(self.others.items()), self.error, self.duplicates]
        return _line([self.client, self.number, None, self.returned_at_ms, answer])


def _line(values: list[Any]) -> str:
    return json.dumps(values, separators=(",", ":")) + "\n"


class History:
    """Calls in memory or, with a path, one JSON line for each call and one for each answer.

    Safe for threads. A file needs `close`, and is flushed with every line: a process that is killed has told
    everything that it did.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.calls: list[Call] = []
        self._lock = threading.Lock()
        self._count = 0
        self._file: IO[str] | None = path.open("a", encoding="utf-8") if path is not None else None

    def begin(self, client: str, verb: Verb, asked: Sequence[Any]) -> Call:
        """Note a call that is about to be made. `client` is unique among all that will be checked together."""
        with self._lock:
            self._count += 1
            call = Call(client, self._count, verb, asked, now_ns() // _NS_PER_MS)
            if self._file is None:
                self.calls.append(call)
            else:
                self._write(call._line_of_begin())
        return call

    def end(
        self,
        call: Call,
        outcome: Outcome,
        *,
        ids: Sequence[str] = (),
        taken: Sequence[Taken] = (),
        others: dict[int, Outcome] | None = None,
        error: str = "",
        duplicates: Sequence[int] = (),
    ) -> None:
        """Complete a call with what it was answered, or with what is known of its failure."""
        call.ids, call.taken, call.others, call.error = list(ids), list(taken), others or {}, error
        call.duplicates = tuple(duplicates)
        call.outcome, call.returned_at_ms = outcome, -(-now_ns() // _NS_PER_MS)
        if self._file is not None:
            with self._lock:
                self._write(call._line_of_end())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, line: str) -> None:
        assert self._file is not None
        self._file.write(line)
        self._file.flush()


def read_histories(paths: Iterable[Path]) -> list[Call]:
    """The calls of all files, in order of their begin. A last line that was cut off by a kill is left out.

    Raises ValueError for any other line that is none of a history.
    """
    return sorted((call for path in paths for call in read_calls(path)), key=attrgetter("invoked_at_ms"))


def read_calls(path: Path) -> Iterator[Call]:
    """The calls of one file, each once it is complete; in the end those that never were. Raises as read_histories."""
    open_calls: dict[tuple[str, int], Call] = {}
    for client, number, verb, at_ms, rest in _lines(path):
        if verb is not None:
            open_calls[client, number] = Call(client, number, Verb(verb), _asked(Verb(verb), rest), at_ms)
            continue
        try:
            call = open_calls.pop((client, number))
        except KeyError as error:
            raise ValueError(f"{path}: call {number} of {client} ended and never began") from error
        outcome, call.ids, taken, others, call.error, *duplicates = rest
        call.duplicates = tuple(duplicates[0]) if duplicates else ()
        call.outcome, call.returned_at_ms = Outcome(outcome), at_ms
        call.taken = [Taken(*entry) for entry in taken]
        call.others = {position: Outcome(other) for position, other in others}
        yield call
    yield from open_calls.values()


def _asked(verb: Verb, asked: list[Any]) -> list[Any]:
    if verb is Verb.DEQUEUE:
        return asked
    return [Put(*entry) if verb is Verb.ENQUEUE else Settled(*entry) for entry in asked]


def _lines(path: Path) -> Iterator[list[Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            yield json.loads(line)


def now_ns() -> int:
    """Nanoseconds since the epoch that never jump: alike in all processes of a machine, within its clock's drift."""
    return time.monotonic_ns() + _EPOCH_NS


def make_payload(uid: str, size_bytes: int) -> bytes:
    """A payload of about this size that says which item it is, and whether it is whole."""
    body = f"{uid} ".encode().ljust(size_bytes - _DIGEST_CHARS, b".")
    return body + _digest(body)


def uid_of(payload: bytes) -> str:
    """The uid of a payload that `make_payload` made; "" when it is not whole."""
    body, digest = payload[:-_DIGEST_CHARS], payload[-_DIGEST_CHARS:]
    return body.split(b" ", 1)[0].decode() if digest == _digest(body) else ""


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:_DIGEST_CHARS].encode()
