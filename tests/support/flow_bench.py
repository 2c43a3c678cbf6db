"""Client flows without a host: what they ask for is recorded and answered from a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from foqs.client.addresses import Address, AddressBook
from foqs.client.flows import Call, Flow, Pause, Send, Terms
from foqs.client.retry import RetryPolicy
from foqs.model.errors import ErrorCode
from foqs.wire import codec as wire

T = TypeVar("T")
S = wire.structs
A, B = Address("a", 1), Address("b", 2)


class Bench:
    """Takes the steps of a flow: answers from a list, a clock that moves with the pauses."""

    def __init__(
        self, *answers: object, random: float = 0.5, addresses: Sequence[Address] = (A,), **policy: int
    ) -> None:
        self.answers = list(answers)
        self.calls: list[Call] = []
        self.asked: list[Address] = []
        self.timeouts_ms: list[int] = []
        self.pauses_ms: list[int] = []
        self.now_ms = 1_000
        self.book = AddressBook(addresses, first=0)
        self.terms = Terms(RetryPolicy(**policy), 10_000, lambda: self.now_ms, lambda: random, self.book)

    def run(self, flow: Flow[T]) -> T:
        """To its end, with all the answers."""
        result = self.run_on(flow)
        assert not self.answers, "the flow asked for less than expected"
        return result

    def run_on(self, flow: Flow[T]) -> T:
        """To its end; answers may be left for another flow."""
        try:
            step = next(flow)
            while True:
                if isinstance(step, Pause):
                    self.pauses_ms.append(step.pause_ms)
                    self.now_ms += step.pause_ms
                    step = next(flow)
                    continue
                assert isinstance(step, Send)
                self.calls.append(step.call)
                step.address = self.book.candidates(self.now_ms, step.avoided)[0]
                self.asked.append(step.address)
                self.timeouts_ms.append(step.timeout_ms)
                answer = self.answers.pop(0)
                step = flow.throw(answer) if isinstance(answer, BaseException) else flow.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


def failed(*codes: tuple[int, ErrorCode]) -> Any:
    return S.BatchResponse(errors={p: S.ItemError(code=code, message="m") for p, code in codes})


def enqueued(ids: Sequence[str], *codes: tuple[int, ErrorCode]) -> Any:
    return S.EnqueueResponse(ids=list(ids), errors=failed(*codes).errors)
