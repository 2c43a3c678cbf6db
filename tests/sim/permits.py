"""Permits of hosts and the book of a topic, step by step: answers are lost or late, shards move, hosts freeze.

A run of its own kind without databases and loops, so that thousands of seeds take minutes. It has the real book, the
real permits of hosts and the real topics of shards. In each step one thing happens, and then no more leases run than
the highest limit under which one of them began. No book grants more than the limit of that moment. At the end every
shard has had its turns, and one that waits alone has all permits.
"""

from __future__ import annotations

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from foqs.host.dispatch.permits import Permits
from foqs.host.dispatch.queues import Queues
from foqs.model import order
from foqs.model.namespace import Namespace, NamespaceSettings, SettingsTable
from foqs.model.permit_book import PermitAnswer, PermitAsk, PermitBook, PermitFacts
from foqs.model.policy import OwnPolicy
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget
from tests.sim.run import Outcome

_TOPIC = (1, "t")
_STEPS = 250
_ROUNDS_MAX = 200
_BACKLOG_ITEMS = 150
_TURN_MS_MAX = 4_500
"""Within this time each shard with items gets a permit. A wait that a dead host has left behind lasts 3 s of it."""
_STEP_MS = 30
_LIMITS = (1, 1, 2, 3, 5)


class _Message(NamedTuple):
    """An ask on its way, and its answer once the book has given it."""

    asks: dict[tuple[int, str], PermitAsk]
    answer: PermitAnswer | None


class PermitHost:
    """A host with the permits of its shards."""

    def __init__(self, run: PermitRun) -> None:
        self.run = run
        self.settings = SettingsTable()
        self.writers: dict[int, Any] = {shard_id: SimpleNamespace(shard=None) for shard_id in run.leases}
        self.queues = Queues(lambda _: None)
        prefetch = cast(Any, SimpleNamespace(unclaim=lambda queue, items: None))
        self.permits = Permits(self.queues, prefetch, self.writers, lambda: run.now_ms / 1000, self.settings)
        self.message: _Message | None = None
        self.queue = self.queues.get(*_TOPIC)

    def follow(self, limit: int) -> None:
        """Follow the policy, as far as this host has read it."""
        namespace = Namespace(1, "n", NamespaceSettings(), 0, policies_version=self.run.policies_version)
        self.settings.replace({1: namespace})
        self.settings.replace_policies({1: {"t": OwnPolicy(in_flight_max=limit)}})
        self.permits.limit(self.queue, limit)

    def part(self, shard_id: int) -> ShardTopic | None:
        shard = self.writers[shard_id].shard
        return None if shard is None else cast("ShardTopic | None", shard.index.topics.get(_TOPIC))

    def serves(self, shard_id: int) -> bool:
        """True if the host is the owner of the shard."""
        shard = self.writers[shard_id].shard
        return shard is not None and shard.epoch == self.run.epochs[shard_id]

    def open(self, shard_id: int, epoch: int, ready: int, leases: int) -> None:
        """Own a shard from now on."""
        self.writers[shard_id].shard = SimpleNamespace(epoch=epoch, since_epoch=epoch, index=SimpleNamespace(topics={}))
        self.add_topic(shard_id, ready, leases)

    def add_topic(self, shard_id: int, ready: int, leases: int) -> ShardTopic:
        part = ShardTopic(shard_id, 1, *_TOPIC, WindowBudget(), {}, stored=False)
        for number in range(ready):
            part.window.add(order.sort_key(1, number, number + 1, shard_id))
        part.out_count = leases
        self.writers[shard_id].shard.index.topics[_TOPIC] = part
        self.queues.of(part)
        return part

    def close(self, shard_id: int) -> None:
        part = self.part(shard_id)
        if part is not None:
            self.queues.remove(part)
        self.writers[shard_id].shard = None

    def forget(self, shard_id: int) -> None:
        """Forget the topic on a shard, where it has been empty for long."""
        part = self.part(shard_id)
        if part is not None and self.serves(shard_id) and not self.run.ready[shard_id] and not part.out_count:
            del self.writers[shard_id].shard.index.topics[_TOPIC]
            self.queues.remove(part)
            self.permits.gone(part)
            self.run.counts["topics forgotten"] += 1

    def renew(self, shard_id: int) -> None:
        """Take a new epoch for a shard that the host serves, and go on with all that it knows."""
        if self.serves(shard_id):
            self.run.epochs[shard_id] += 1
            self.writers[shard_id].shard.epoch = self.run.epochs[shard_id]
            self.run.counts["epochs renewed"] += 1

    def claim(self, shard_id: int) -> None:
        """Claim what there is room for. An owner of an earlier epoch fails, and then knows that it is none."""
        part, run = self.part(shard_id), self.run
        if part is None or not self.queue.waiting_count:
            return
        count = min(part.room, len(part.window), self.queue.waiting_count)
        if not count:
            return
        if not self.serves(shard_id):
            self.close(shard_id)
            return
        part.window.take(count)
        part.out_count += count
        self.queue.waiting_count -= count
        run.ready[shard_id] -= count
        run.leases[shard_id] += [self.settings.policy(*_TOPIC).in_flight_max] * count
        run.counts["leases"] += count
        run.last_claim[shard_id] = run.now_ms

    def end_lease(self, shard_id: int) -> None:
        part, run = self.part(shard_id), self.run
        if part is None or not run.leases[shard_id] or not self.serves(shard_id):
            return
        run.leases[shard_id].pop(run.chance.randrange(len(run.leases[shard_id])))
        part.out_count -= 1
        self.permits.check(self.queue)


class PermitRun:
    """A run of one topic, step by step."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now_ms = 1_000_000
        self.counts: Counter[str] = Counter()
        shards = range(self.chance.choice([1, 2, 2, 3]))
        self.leases: dict[int, list[int]] = {shard_id: [] for shard_id in shards}
        """The limit under which each lease of a shard began."""
        self.ready = {shard_id: self.chance.randrange(12) for shard_id in shards}
        self.epochs = dict.fromkeys(shards, 0)
        self.last_claim: dict[int, int] = {}
        self.removed: dict[int, int] = {}
        """The shards that an operator has removed, with their last epochs."""
        self.limit = self.chance.choice(_LIMITS)
        self.policies_version = 1
        self.complaint = ""
        self.changes = self.chance.random() < 0.4
        self.book = b""
        self.hosts = [PermitHost(self) for _ in range(self.chance.choice([1, 2, 3]))]
        for host in self.hosts:
            host.follow(self.limit)
        for shard_id in shards:
            self.move(shard_id, self.chance.choice(self.hosts))

    def move(self, shard_id: int, to: PermitHost, *, is_frozen: bool = False) -> None:
        """Give a shard to another host. The owner before knows it, or is frozen and finds out by its next claim."""
        if not is_frozen:
            for host in self.hosts:
                host.close(shard_id)
        else:
            to.close(shard_id)
        self.epochs[shard_id] += 1
        to.open(shard_id, self.epochs[shard_id], self.ready[shard_id], len(self.leases[shard_id]))

    # ---- messages ----

    def send(self, host: PermitHost) -> None:
        if host.message is None and (asks := host.permits.take_asks(10)):
            host.message = _Message(asks, None)

    def arrive(self, host: PermitHost) -> None:
        """Let the book answer the ask of a host."""
        if host.message is None or host.message.answer is not None:
            return
        book, ask = PermitBook.unpack(self.book), host.message.asks[_TOPIC]
        least = {shard_id: one.permits for shard_id, one in book.shards.items()}
        for one in ask.shards:
            least[one.shard_id] = max(least.get(one.shard_id, 0), one.used_count)
        answer = book.answer(_TOPIC[0], ask, self.now_ms, PermitFacts({_TOPIC[0]: self.policies_version}, self.removed))
        self.book = book.pack()
        is_granted = any(one.permits > least.get(shard_id, 0) for shard_id, one in book.shards.items())
        if is_granted and book.free_count(self.limit) < 0:
            self.complaint = f"the limit is {self.limit}, and a host with {ask.limit} got {answer.permits}"
        host.message = host.message._replace(answer=answer)
        self.counts["asks"] += 1

    def answer(self, host: PermitHost, *, is_lost: bool = False) -> None:
        if host.message is not None and (is_lost or host.message.answer is not None):
            message, host.message = host.message, None
            host.permits.answered(_TOPIC, message.asks[_TOPIC], None if is_lost else message.answer)
            host.permits.check(host.queue)
            self.counts["answers lost"] += is_lost

    def look(self, host: PermitHost) -> None:
        book = PermitBook.unpack(self.book)
        if host.message is None and book.waited_until_ms() > self.now_ms:
            host.permits.books_read({_TOPIC: book}, self.now_ms)

    # ---- steps ----

    def step(self) -> None:
        chance = self.chance
        self.now_ms += chance.randrange(_STEP_MS)
        host, shard_id = chance.choice(self.hosts), chance.choice(list(self.leases))
        kinds = {
            "claim": 6, "end": 4, "want": 4, "send": 6, "arrive": 6, "answer": 6, "lose": 1, "look": 3, "tick": 1,
            "move": 1, "freeze": 1, "kill": 0.5, "change": self.changes, "follow": 3 * self.changes, "enqueue": 1,
            "renew": 1, "forget": 1, "remove": 0.3,
        }  # fmt: skip
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        if kind == "claim":
            host.claim(shard_id)
        elif kind == "end":
            host.end_lease(shard_id)
        elif kind == "want":
            host.queue.waiting_count = chance.randrange(6)
            host.permits.check(host.queue)
        elif kind == "send":
            self.send(host)
        elif kind == "arrive":
            self.arrive(host)
        elif kind == "answer":
            self.answer(host)
        elif kind == "lose":
            self.answer(host, is_lost=True)
        elif kind == "look":
            self.look(host)
        elif kind == "enqueue":
            self.add_ready(shard_id, 5)
        elif kind == "tick":
            host.permits.tick()
        elif kind == "renew":
            host.renew(shard_id)
        elif kind == "forget":
            host.forget(shard_id)
        elif kind == "remove":
            self.remove(shard_id)
        elif kind in ("move", "freeze"):
            self.removed.pop(shard_id, None)  # It is added again.
            self.move(shard_id, host, is_frozen=kind == "freeze")
        elif kind == "kill":
            self.kill(host)
        elif kind == "change":
            self.limit = chance.choice(_LIMITS)
            self.policies_version += 1
        elif host.settings.policies_version(_TOPIC[0]) != self.policies_version:
            host.follow(self.limit)

    def remove(self, shard_id: int) -> None:
        """Remove a shard, whose items were consumed."""
        if self.leases[shard_id] or shard_id in self.removed or len(self.removed) + 1 == len(self.leases):
            return
        self.removed[shard_id], self.ready[shard_id] = self.epochs[shard_id], 0
        for host in self.hosts:
            host.close(shard_id)
        self.counts["shards removed"] += 1

    def kill(self, host: PermitHost) -> None:
        """Let another process take the place of a host. What it asked can still arrive at the book."""
        self.arrive(host) if self.chance.random() < 0.5 else None
        other = PermitHost(self)
        other.follow(self.limit)
        self.hosts[self.hosts.index(host)] = other
        for shard_id in self.leases:
            if host.serves(shard_id):
                self.move(shard_id, self.chance.choice(self.hosts))

    def problem(self) -> str:
        if self.complaint:
            return self.complaint
        limits = [limit for leases in self.leases.values() for limit in leases]
        if len(limits) > max(limits, default=0):
            return f"{len(limits)} leases run under limits of {sorted(set(limits))}: {self.leases}"
        return ""

    def calm(self) -> str:
        """Let all items be consumed. Every shard has its turns, and frozen hosts know what they have lost."""
        for host in self.hosts:
            host.follow(self.limit)
            for shard_id, epoch in self.epochs.items():
                shard = host.writers[shard_id].shard
                if shard is not None and shard.epoch < epoch:
                    host.close(shard_id)
        since_ms = dict.fromkeys([shard_id for shard_id in self.leases if shard_id not in self.removed], self.now_ms)
        for shard_id in self.leases:
            self.add_ready(shard_id, _BACKLOG_ITEMS)
        for _ in range(_ROUNDS_MAX):
            self.round()
            for host in self.hosts:
                for shard_id in self.leases:
                    host.end_lease(shard_id)
            if problem := self.problem():
                return problem
            for shard_id, began_ms in since_ms.items():
                waited_ms = self.now_ms - max(began_ms, self.last_claim.get(shard_id, 0))
                if waited_ms > _TURN_MS_MAX and self.ready[shard_id]:
                    return f"shard {shard_id} has waited for {waited_ms} ms, and others have had their turns"
        return self.idle_permits(self.chance.choice(list(since_ms)))

    def idle_permits(self, alone: int) -> str:
        """Let one shard have items, and end none of its leases. It gets the permits that no other one uses."""
        for host in self.hosts:
            for shard_id in self.leases:
                while host.serves(shard_id) and self.leases[shard_id]:
                    host.end_lease(shard_id)
                part = host.part(shard_id)
                if part is not None and host.serves(shard_id):
                    part.window.take(len(part.window))
                    self.ready[shard_id] = 0
        self.add_ready(alone, _BACKLOG_ITEMS)
        for _ in range(_ROUNDS_MAX):
            self.round()
        count = len(self.leases[alone])
        return "" if count == self.limit else f"shard {alone} waits alone, and has {count} permits of {self.limit}"

    def round(self) -> None:
        """Let each host claim, ask its book and look."""
        self.now_ms += _STEP_MS
        for host in self.hosts:
            host.queue.waiting_count = 3 * len(self.leases)
            host.permits.tick()
            for shard_id in self.leases:
                host.claim(shard_id)
            host.permits.check(host.queue)
            self.send(host)
            self.arrive(host)
            self.answer(host)
            self.look(host)

    def add_ready(self, shard_id: int, count: int) -> None:
        """Enqueue items."""
        for host in self.hosts:
            if host.serves(shard_id):
                part = host.part(shard_id) or host.add_topic(shard_id, 0, 0)
                for number in range(count):
                    part.window.add(order.sort_key(1, 100 + number, 100 + number, shard_id))
                self.ready[shard_id] += count


def run_permits(seed: int) -> Outcome:
    """One run. Repeatable by the seed."""
    run = PermitRun(seed)
    complaints: list[str] = []
    for _ in range(_STEPS):
        run.step()
        if problem := run.problem():
            complaints.append(problem)
            break
    if not complaints and (problem := run.calm()):
        complaints.append(problem)
    return Outcome(seed, 0.0, complaints, _STEPS, 0.0, run.counts, ("permits",))
