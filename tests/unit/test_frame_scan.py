"""The structural scan against a slow, plain reader of the same rules, and against the decoder it protects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.model.limits import (
    FRAME_DEPTH_MAX,
    FRAME_ELEMENTS_MAX,
    FRAME_FIELDS_PER_STRUCT_MAX,
    NAMESPACE_NAME_CHARS_MAX,
)
from foqs.wire.codec import METHODS, METHODS_BY_NAME_BYTES, Codec, structs
from foqs.wire.frames import FrameError, peek_call, scan_call, scan_reply
from tests.support import thrift_bytes as tb

FIXED = {tb.BOOL: 1, tb.BYTE: 1, tb.DOUBLE: 8, tb.I16: 2, tb.I32: 4, tb.I64: 8}
I64_VALUES = st.integers(-(2**63), 2**63 - 1)
I32_VALUES = st.integers(-(2**31), 2**31 - 1)


class RefusedError(Exception):
    pass


class PlainScanner:
    """Reads field by field and takes nothing on trust: every read is checked against the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.budget = FRAME_ELEMENTS_MAX

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def spend(self, count: int) -> None:
        self.budget -= count
        if count < 0 or self.budget < 0:
            raise RefusedError

    def scan(self) -> bytes:
        if self.take(4) != b"\x80\x01\x00\x01":
            raise RefusedError
        name = self.take(self.number())
        if not 1 <= len(name) <= 64 or any(not 0x20 <= byte < 0x7F for byte in name):
            raise RefusedError
        self.take(4)
        self.value(tb.STRUCT, 1)
        if self.at != len(self.data):
            raise RefusedError
        return name

    def value(self, kind: int, depth: int) -> None:
        if kind in FIXED:
            self.take(FIXED[kind])
        elif kind == tb.STRING:
            self.take(self.number())
        elif depth > FRAME_DEPTH_MAX:
            raise RefusedError
        elif kind == tb.STRUCT:
            self.struct(depth)
        elif kind in (tb.LIST, tb.SET):
            self.elements(1, depth)
        elif kind == tb.MAP:
            self.elements(2, depth)
        else:
            raise RefusedError

    def struct(self, depth: int) -> None:
        fields = 0
        while kind := self.number(1):
            fields += 1
            if fields > FRAME_FIELDS_PER_STRUCT_MAX:
                raise RefusedError
            self.take(2)
            self.value(kind, depth + 1)
        self.spend(fields)

    def elements(self, width: int, depth: int) -> None:
        kinds = [self.number(1) for _ in range(width)]
        count = self.number()
        self.spend(count * width)
        for _ in range(count):
            for kind in kinds:
                self.value(kind, depth + 1)


def plain_says(data: bytes) -> bool:
    try:
        PlainScanner(data).scan()
    except RefusedError:
        return False
    return True


def scan_says(data: bytes) -> bool:
    try:
        scan_call(data, 0, len(data))
    except FrameError:
        return False
    return True


def decode(data: bytes) -> Any:
    name, _, body = scan_call(data, 0, len(data))
    return Codec().decode_request(METHODS_BY_NAME_BYTES[name], data[body:])


NEW_ITEMS = st.builds(
    structs.NewItem,
    st.text(max_size=5),
    st.binary(max_size=9),
    I32_VALUES,
    st.none() | I64_VALUES,
    st.none() | I64_VALUES,
    st.none() | I64_VALUES,
    metadata=st.none() | st.binary(max_size=3),
    delivery=st.sampled_from([None, 0, 1]),
    dedup_id=st.none() | st.text(max_size=3),
)
REQUESTS = st.one_of(
    st.tuples(
        st.just("enqueue"),
        st.builds(structs.EnqueueRequest, st.text(), st.lists(NEW_ITEMS, max_size=4), st.booleans()),
    ),
    st.tuples(
        st.just("dequeue"),
        st.builds(
            structs.DequeueRequest,
            st.text(),
            st.lists(st.builds(structs.TopicDemand, st.text(), I32_VALUES), max_size=3),
            st.none() | I64_VALUES,
            I64_VALUES,
        ),
    ),
    st.tuples(st.just("ack"), st.builds(structs.AckRequest, st.text(), st.lists(st.text(), max_size=5))),
    st.tuples(
        st.just("createNamespace"),
        st.builds(
            structs.CreateNamespaceRequest,
            st.text(),
            st.none() | st.builds(structs.NamespaceSettings, st.none() | I64_VALUES),
        ),
    ),
    st.tuples(st.just("getHostStatus"), st.builds(structs.HostStatusRequest)),
)
CALLS = REQUESTS.map(lambda call: Codec().encode_call(call[0], call[1], 7)[4:])

_SCALARS = st.sampled_from(sorted(FIXED)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.binary(min_size=FIXED[kind], max_size=FIXED[kind]))
)
_STRINGS = st.tuples(st.just(tb.STRING), st.binary(max_size=6).map(tb.string))


def _containers(values: st.SearchStrategy[tuple[int, bytes]]) -> st.SearchStrategy[tuple[int, bytes]]:
    """Structs of anything; lists, sets and maps that repeat one value."""
    fields = st.lists(values, max_size=4).map(
        lambda found: b"".join(tb.field(kind, n, value) for n, (kind, value) in enumerate(found)) + tb.STOP
    )
    count = st.integers(0, 3)
    return st.one_of(
        st.tuples(st.just(tb.STRUCT), fields),
        st.builds(lambda k, v, n: (k, tb.list_of(v[0], [v[1]] * n)), st.sampled_from([14, 15]), values, count),
        st.builds(lambda k, v, n: (tb.MAP, tb.map_of(k[0], v[0], [k[1] + v[1]] * n)), values, values, count),
    )


ANY_VALUE = st.recursive(_SCALARS | _STRINGS, _containers, max_leaves=12)
STRANGE_CALLS = ANY_VALUE.map(lambda value: tb.enqueue(tb.field(value[0], tb.UNKNOWN_FIELD, value[1])))


@given(REQUESTS)
def test_every_message_that_a_client_encodes_is_accepted_and_decodes_to_what_it_was(
    call: tuple[str, Any],
) -> None:
    method, request = call
    data = Codec().encode_call(method, request, -5)[4:]
    name, seqid, body = scan_call(b"before" + data + b"after", 6, 6 + len(data))
    assert (name.decode(), seqid) == (method, -5)
    assert Codec().decode_request(METHODS[method], data[body - 6 :]) == request


@given(STRANGE_CALLS)
def test_fields_that_nobody_knows_are_passed_over_whatever_they_hold(data: bytes) -> None:
    assert plain_says(data)
    assert decode(data).items[0].topic == "topic"


@settings(max_examples=40)
@given(CALLS | STRANGE_CALLS)
def test_no_truncated_message_is_accepted(data: bytes) -> None:
    for size in range(len(data)):
        assert not scan_says(data[:size])
        with pytest.raises(FrameError):
            scan_call(data, 0, size)


@settings(max_examples=400)
@given(CALLS | STRANGE_CALLS, st.data())
@pytest.mark.deep
def test_a_mutated_message_is_judged_as_the_plain_scanner_does_and_decodes_cleanly(
    data: bytes, draw: st.DataObject
) -> None:
    mutated = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 3))):
        mutated[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    _judge(bytes(mutated))


def test_every_byte_of_a_good_message_set_to_every_value_is_judged_alike_and_decodes_cleanly() -> None:
    item = structs.NewItem("t", b"p", 1, metadata=b"m")
    data = Codec().encode_call("enqueue", structs.EnqueueRequest("ns", [item, item]), 7)[4:]
    accepted = 0
    for at in range(len(data)):
        for value in range(256):
            accepted += _judge(data[:at] + bytes([value]) + data[at + 1 :])
    assert len(data) < accepted < 256 * len(data) // 2


def _judge(data: bytes) -> bool:
    accepted = scan_says(data)
    assert accepted is plain_says(data)
    if accepted and data[8 : 8 + data[7]] in METHODS_BY_NAME_BYTES:
        try:
            decode(data)
        except UnicodeDecodeError:
            return True
    return accepted


def test_the_fast_scan_and_the_plain_one_agree_at_every_limit() -> None:
    unknown = tb.UNKNOWN_FIELD
    for number in (-1, 0, 1):
        spent_elsewhere = 7
        elements = FRAME_ELEMENTS_MAX - spent_elsewhere + number
        fields = FRAME_FIELDS_PER_STRUCT_MAX + number
        depth = FRAME_DEPTH_MAX - 2 + number
        for data in (
            tb.enqueue(tb.field(tb.LIST, unknown, tb.list_of(tb.BYTE, [b"\0"] * elements))),
            tb.enqueue(tb.field(tb.STRUCT, unknown, tb.field(tb.BYTE, 1, b"\1") * fields + tb.STOP)),
            tb.enqueue(tb.field(tb.STRUCT, unknown, tb.nested(tb.STRUCT, depth))),
            tb.enqueue(tb.field(tb.LIST, unknown, tb.nested(tb.LIST, depth))),
            tb.enqueue(tb.field(tb.MAP, unknown, tb.nested(tb.MAP, depth))),
        ):
            assert scan_says(data) is plain_says(data) is (number <= 0)


def test_no_request_has_a_map_for_the_decoder_to_misread() -> None:
    """Where a map is declared, thriftpy2 takes a string key for the declared type: off the scanned path."""
    seen: set[Any] = set()

    def look_at(spec: Any) -> None:
        if isinstance(spec, tuple):
            assert spec[0] != tb.MAP
            for part in spec:
                look_at(part)
        elif hasattr(spec, "thrift_spec") and spec not in seen:
            seen.add(spec)
            for field in spec.thrift_spec.values():
                assert field[0] != tb.MAP, (spec, field)
                look_at(field[2])

    for method in METHODS.values():
        look_at(method.args)
    assert any(issubclass(spec, structs.NewItem) for spec in seen)


def test_an_answer_with_a_map_of_strings_is_refused() -> None:
    bomb = tb.map_of(tb.STRING, tb.STRUCT, [tb.string(b"\x7f\xff\xff\xff") + tb.STOP])
    answer = tb.field(tb.STRUCT, 0, tb.field(tb.MAP, 2, bomb) + tb.STOP) + tb.STOP
    data = tb.message(answer, kind=tb.REPLY)
    with pytest.raises(FrameError, match="map of strings"):
        scan_reply(data, 0, len(data))


def test_a_call_is_no_answer_and_an_answer_no_call() -> None:
    call = tb.enqueue()
    answer = tb.message(tb.STOP, kind=tb.REPLY)
    with pytest.raises(FrameError, match="type 1"):
        scan_reply(call, 0, len(call))
    with pytest.raises(FrameError, match="type 2"):
        scan_call(answer, 0, len(answer))


# --- what a call says of itself before it is scanned ---


def message_of(method: str, request: Any) -> bytes:
    return Codec().encode_call(method, request, 7)[4:]


def test_the_method_and_the_namespace_of_every_call_are_known_before_it_is_scanned() -> None:
    named_count = 0
    for method in METHODS.values():
        first = next(iter(method.request.thrift_spec.values()), None)
        if first is not None and first[1] in ("namespace_name", "name"):
            named_count += 1
            message = message_of(method.name, method.request(**{first[1]: "jobs"}))
            assert peek_call(message) == (method.name_bytes, b"jobs")
        else:
            assert peek_call(message_of(method.name, method.request())) == (method.name_bytes, b"")
    assert named_count == 43


def test_a_name_that_no_namespace_can_have_is_none() -> None:
    longest = "n" * NAMESPACE_NAME_CHARS_MAX
    assert peek_call(message_of("ack", structs.AckRequest(longest, []))) == (b"ack", longest.encode())
    assert peek_call(message_of("ack", structs.AckRequest(longest + "n", []))) == (b"ack", b"")
    assert peek_call(message_of("ack", structs.AckRequest(None, ["receipt"]))) == (b"ack", b"")


def test_a_namespace_that_is_not_the_first_field_is_not_looked_for() -> None:
    receipts = tb.field(tb.LIST, 2, tb.list_of(tb.STRING, [tb.string(b"r")]))
    namespace = tb.field(tb.STRING, 1, tb.string(b"jobs"))
    message = tb.message(tb.field(tb.STRUCT, 1, receipts + namespace + tb.STOP) + tb.STOP, name=b"ack")
    assert scan_call(message, 0, len(message))[0] == b"ack"
    assert peek_call(message) == (b"ack", b"")


def test_a_method_is_known_only_with_a_whole_head_of_a_strict_call() -> None:
    good = message_of("enqueue", structs.EnqueueRequest("jobs", []))
    head_bytes = 12 + len("enqueue")
    assert peek_call(good[:head_bytes]) == (b"enqueue", b"")
    assert {peek_call(good[:size]) for size in range(head_bytes)} == {(b"", b"")}
    assert peek_call(b"\x80\x01\x00\x02" + good[4:]) == (b"", b"")
    assert peek_call(tb.message(tb.STOP, name=b"m" * 65)) == (b"", b"")


@settings(max_examples=300)
@given(st.data())
@pytest.mark.deep
def test_whatever_bytes_come_what_is_found_is_short_and_of_them(data: st.DataObject) -> None:
    good = message_of("enqueue", structs.EnqueueRequest("jobs", []))
    kind = data.draw(st.sampled_from(["any", "cut", "changed"]))
    if kind == "any":
        message = data.draw(st.binary(max_size=80))
    elif kind == "cut":
        message = good[: data.draw(st.integers(0, len(good)))]
    else:
        at = data.draw(st.integers(0, len(good) - 1))
        message = good[:at] + data.draw(st.binary(min_size=1, max_size=4)) + good[at + 1 :]
    name, namespace = peek_call(message)
    assert len(namespace) <= NAMESPACE_NAME_CHARS_MAX
    assert name in message
    assert namespace in message
