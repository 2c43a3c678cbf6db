"""The wire form of the contract: idl/foqs.thrift, and messages to bytes and back, for servers and clients.

A frame is a big-endian u32 length and that many bytes of one strict binary Thrift message. thriftpy2's Cython protocol
encodes and decodes. Bytes from outside reach it only after `foqs.wire.frames` has walked them, because it trusts them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn

import thriftpy2
from thriftpy2.protocol.cybin.cybin import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TType
from thriftpy2.transport.memory.cymemory import TCyMemoryBuffer

from foqs.model import limits
from foqs.model.delivered import DeliveredBundle
from foqs.model.errors import FoqsError, InvalidArgumentError, TooLargeError, error_for_code
from foqs.wire.frames import CALL, EXCEPTION, REPLY, FrameError, scan_call, scan_reply
from foqs.wire.frames import LENGTH_BYTES as LENGTH_BYTES
from foqs.wire.item_batch import cut_batch

_KEPT_BUFFER_BYTES_MAX: Final = 1 * limits.MIB
_VERSION_1: Final = 0x8001_0000
_SEQID: Final = Struct("!i")
_HEADS: Final = [Struct(f"!III{size}si") for size in range(limits.METHOD_NAME_BYTES_MAX + 1)]
"""The layout of a frame's head for each length of a name: frame length, version and type, name length, name, seqid."""
_MESSAGE_HEAD_BYTES: Final = 12
"""The bytes of version and type, the length of the name, and the seqid."""
_FIELD_HEAD_BYTES: Final = 3
_LIST_HEAD_BYTES: Final = _FIELD_HEAD_BYTES + 5
"""The bytes of the head of a list field, with the type and the count of its elements."""
_LIST_HEAD: Final = Struct("!BhBI")
_U32: Final = Struct("!I")
_STRING_HEAD_BYTES: Final = _FIELD_HEAD_BYTES + 4
"""The bytes of the head of a text field, with its length."""
_ID_HEAD: Final = bytes([TType.STRING, 0, 1])
_RECEIPT_HEAD: Final = bytes([TType.STRING, 0, 2])
_NO_PAYLOAD: Final = bytes([TType.STRING, 0, 5, 0, 0, 0, 0])
"""The field of an empty payload in an item of an answer."""
Part = bytes | memoryview
"""Bytes of a message that are joined with others."""


def _idl_path() -> Path:
    """Return the path of the contract, which is beside this module in a wheel, and in idl/ of a source checkout."""
    packaged = Path(__file__).with_name("foqs.thrift")
    return packaged if packaged.exists() else Path(__file__).parents[2] / "idl" / "foqs.thrift"


structs: Any = thriftpy2.load(str(_idl_path()), module_name="foqs_wire_thrift")
"""The generated structs: `structs.NewItem(topic="t", payload=b"")` and so on, named as in the IDL."""

structs.Nack.thrift_spec[7] = (TType.BINARY, *structs.Nack.thrift_spec[7][1:])
# A reason that is not UTF-8, such as one cut within a character, must not fail its call. The wire form is the same.

structs.AuthenticateRequest.__repr__ = lambda self: "AuthenticateRequest(token='***')"
structs.CreateTokenResponse.__repr__ = lambda self: f"CreateTokenResponse(token='***', info={self.info!r})"
# A token is in no log and in no traceback.

UNKNOWN_METHOD: Final[int] = TApplicationException.UNKNOWN_METHOD


class ApplicationError(Exception):
    """A Thrift TApplicationException: the host does not know the method, or could not answer by contract."""

    def __init__(self, kind: int, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class UnreadableCallError(Exception):
    """A call that a host cannot decode, though its message is complete; `response` has the reason for the caller."""

    def __init__(self, method_name: str, outcome: str, response: bytes) -> None:
        """`method_name` and `outcome` are for the metrics."""
        super().__init__(f"{method_name}: {outcome}")
        self.method_name = method_name
        self.outcome = outcome
        self.response = response


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """One verb of the contract.

    `required` has the names of the mandatory fields of its request, `batch` that of its list field, if it has one.
    """

    name: str
    service: str
    request: Any
    required: tuple[str, ...]
    batch: str | None
    args: Any
    result: Any
    name_bytes: bytes


def _quickly_made(struct: Any) -> type:
    """Make a subclass of `struct` that decodes faster: absent fields are class attributes, not set in each instance."""

    def equals(self: object, other: object) -> bool:
        return isinstance(other, struct) and all(getattr(self, n) == getattr(other, n) for n, _ in struct.default_spec)

    made = {"__init__": object.__init__, "__eq__": equals, "__module__": struct.__module__}
    return type(struct.__name__, (struct,), made | dict(struct.default_spec))


def _decode_quickly(batch: Any) -> None:
    """Use quick classes for the elements of this struct's lists, unless another verb's use of it already did."""
    for number, (kind, name, element, *rest) in batch.thrift_spec.items():
        if kind == TType.LIST and isinstance(element, tuple) and element[1].__init__ is not object.__init__:
            batch.thrift_spec[number] = (kind, name, (element[0], _quickly_made(element[1])), *rest)


def _methods_of(service: Any) -> list[Method]:
    methods = []
    for name in service.thrift_services:
        args = getattr(service, f"{name}_args")
        result = getattr(service, f"{name}_result")
        request, response = args.thrift_spec[1][2], result.thrift_spec[0][2]
        _decode_quickly(request)
        _decode_quickly(response)
        methods.append(
            Method(
                name=name,
                service=service.__name__,
                request=request,
                required=tuple(spec[1] for spec in request.thrift_spec.values() if spec[-1]),
                batch=next((spec[1] for spec in request.thrift_spec.values() if spec[0] == TType.LIST), None),
                args=args,
                result=result,
                name_bytes=name.encode("ascii"),
            )
        )
    return methods


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for service in (structs.FoqsPeer, structs.FoqsAccess, structs.FoqsAdmin, structs.Foqs)
    for method in _methods_of(service)
}
"""Every verb of all services by its name on the wire, such as `extendLease`. One of two services is as in Foqs."""

METHODS_BY_NAME_BYTES: Final[dict[bytes, Method]] = {m.name_bytes: m for m in METHODS.values()}

ENQUEUE: Final = METHODS["enqueue"]
DEQUEUE: Final = METHODS["dequeue"]
END_WAIT: Final = METHODS["endWait"]
HANDSHAKE: Final = frozenset({"greet", "join", "hello", "prove"})
"""The verbs by which a host proves its membership of the cluster."""


def encode_as(cls: type, struct: Any) -> None:
    """Let instances of `cls` be encoded in place of `struct`, without a copy.

    thriftpy2's encoder only uses a value's `thrift_spec` and its attributes. Encoding an item of an answer costs 1.3 µs
    this way, and 1.9 to 2.5 µs if a struct is built from the same attributes first. Fields that the dataclass `cls`
    lacks are not sent.
    """
    spec = struct.thrift_spec
    if is_dataclass(cls):
        names = {field.name for field in fields(cls)}
        spec = {number: field for number, field in spec.items() if field[1] in names}
    cls.thrift_spec = spec  # type: ignore[attr-defined]


class Reply(NamedTuple):
    """The answer of a host: exactly one of `response` and `error` is set."""

    method: Method | None
    seqid: int
    response: Any
    error: FoqsError | ApplicationError | None


def field_number(struct: Any, name: str) -> int:
    """Return the number of a field in the contract, for encoders by hand."""
    number: int = next(number for number, spec in struct.thrift_spec.items() if spec[1] == name)
    return number


def seqid_of(message: bytes) -> int:
    """Return the seqid of a message whose head is complete, even if the rest is not."""
    seqid: int = _SEQID.unpack_from(message, 8 + int.from_bytes(message[4:8], "big"))[0]
    return seqid


def for_seqid(frame: bytes, seqid: int) -> bytes:
    """Give a call or an answer another seqid, without encoding it anew."""
    at = 12 + int.from_bytes(frame[8:12], "big")
    return b"".join((frame[:at], _SEQID.pack(seqid), frame[at + 4 :]))


class Codec:
    """Turns messages into frames and back, reusing the two buffers that it owns.

    A server has one for all of its connections, and every connection of a client has its own. Threads cannot share it.
    """

    def __init__(self) -> None:
        self._renew()

    def encode_call(self, method: str, request: Any, seqid: int) -> bytes:
        """Return the whole frame, header included, of a call. Raises FoqsError TOO_LARGE beyond the frame limit."""
        verb = METHODS[method]
        return self._encode(CALL, verb.name_bytes, seqid, verb.args(request=request))

    def join_call(self, method: str, rest: Any, count: int, parts: Sequence[Part], seqid: int) -> bytes:
        """Join the frame of a call whose batch of `count` structs was encoded in parts; `rest` is the call without it.

        Raises FoqsError TOO_LARGE beyond the frame limit.
        """
        verb = METHODS[method]
        frame = self.encode_call(method, rest, seqid)
        fields_at = LENGTH_BYTES + _MESSAGE_HEAD_BYTES + len(verb.name_bytes) + _FIELD_HEAD_BYTES
        size = len(frame) - LENGTH_BYTES + _LIST_HEAD_BYTES + sum(map(len, parts))
        if size > limits.FRAME_BYTES_MAX:
            raise _too_large(size)
        assert verb.batch is not None
        batch_head = _LIST_HEAD.pack(TType.LIST, field_number(verb.request, verb.batch), TType.STRUCT, count)
        return b"".join((_U32.pack(size), frame[LENGTH_BYTES:fields_at], batch_head, *parts, frame[fields_at:]))

    def encode_reply(self, method: Method, response: Any, seqid: int) -> bytes:
        """Return the frame of an answer. Raises FoqsError TOO_LARGE beyond the frame limit."""
        return self._encode(REPLY, method.name_bytes, seqid, method.result(success=response))

    def encode_elements(self, response: Any) -> bytes:
        """Encode the elements of the list in the first and only field of an answer, for `join_reply`."""
        return self._encode_struct(response)[_LIST_HEAD_BYTES:-1]

    def join_reply(self, method: Method, rest: Any, count: int, parts: Sequence[bytes], seqid: int) -> bytes:
        """Return the frame of an answer whose list was encoded in parts; `rest` is the answer with an empty list.

        Raises FoqsError TOO_LARGE beyond the frame limit.
        """
        frame = self.encode_reply(method, rest, seqid)
        list_at = LENGTH_BYTES + _MESSAGE_HEAD_BYTES + len(method.name_bytes) + _FIELD_HEAD_BYTES
        elements_at = list_at + _LIST_HEAD_BYTES
        size = len(frame) - LENGTH_BYTES + sum(map(len, parts))
        if size > limits.FRAME_BYTES_MAX:
            raise _too_large(size)
        head = frame[LENGTH_BYTES : elements_at - _U32.size]
        return b"".join((_U32.pack(size), head, _U32.pack(count), *parts, frame[elements_at:]))

    def encode_delivered(self, method: Method, parts: Sequence[Any], count: int, seqid: int) -> bytes:
        """Return the frame of an answer to a dequeue with the items of these parts, as `Delivered` has them.

        Raises FoqsError TOO_LARGE beyond the frame limit.
        """
        encoded: list[bytes] = []
        alone: list[Any] = []
        for part in parts:
            if not isinstance(part, DeliveredBundle):
                alone.append(part)
                continue
            if alone:
                encoded.append(self.encode_elements(structs.DequeueResponse(alone)))
                alone = []
            encoded.append(self._encode_bundle(part))
        if alone:
            encoded.append(self.encode_elements(structs.DequeueResponse(alone)))
        return self.join_reply(method, structs.DequeueResponse([]), count, encoded, seqid)

    def _encode_bundle(self, bundle: DeliveredBundle) -> bytes:
        """Encode the items of a bundle as copies of the first one, each with its own id, receipt and payload."""
        first, keys = bundle.first, range(bundle.first_key, bundle.first_key + len(bundle.payloads))
        id_bytes, receipt_bytes = len(first.id), len(first.receipt)
        if len(f"{keys[-1]:x}") > len(f"{keys[0]:x}"):
            return self.encode_elements(structs.DequeueResponse(bundle.items()))
        one = self.encode_elements(structs.DequeueResponse([replace(first, payload=b"")]))
        shared_at = 2 * _STRING_HEAD_BYTES + id_bytes + receipt_bytes
        payload_at = one.index(_NO_PAYLOAD, shared_at + _STRING_HEAD_BYTES + len(first.topic.encode()))
        shard, number = b"%x-" % bundle.shard_id, b":%x" % bundle.delivery_number
        form = b"%x".join(
            [
                _constant(_ID_HEAD + _U32.pack(id_bytes) + shard),
                _constant(_RECEIPT_HEAD + _U32.pack(receipt_bytes) + shard),
                _constant(number + one[shared_at : payload_at + _FIELD_HEAD_BYTES]),
            ]
        )
        form += b"%b%b" + _constant(one[payload_at + _STRING_HEAD_BYTES :])
        sizes = {size: _U32.pack(size) for size in set(map(len, bundle.payloads))}
        values: list[int | bytes] = []
        for key, payload in zip(keys, bundle.payloads, strict=True):
            values += (key, key, sizes[len(payload)], payload)
        return form * len(keys) % tuple(values)

    def encode_error(self, method: Method, error: FoqsError, seqid: int) -> bytes:
        """Return the frame of the exception that the contract declares."""
        message, request_id = error.message, error.request_id
        if request_id is not None and request_id not in message:  # An error from another host has it already.
            message = f"{message} (request {request_id})"
        declared = structs.FoqsError(int(error.code), message, error.retry_after_ms, error.nothing_done, request_id)
        return self._encode(REPLY, method.name_bytes, seqid, method.result(error=declared))

    def encode_application_error(self, name: bytes, kind: int, message: str, seqid: int) -> bytes:
        """Return the frame of a TApplicationException, for a method that the contract does not have."""
        return self._encode(EXCEPTION, name, seqid, TApplicationException(kind, message))

    def decode_call(self, message: bytes) -> tuple[Method, int, Any, int]:
        """Scan and decode a call: its method, its seqid, its request (see `decode_request`) and the size of its batch.

        Raises FrameError for bytes that are no call, and UnreadableCallError for a call that cannot be decoded.
        """
        cut = cut_batch(message)
        if cut is not None:
            message = cut.message
        name, seqid, body = scan_call(message, 0, len(message))
        method = METHODS_BY_NAME_BYTES.get(name)
        if method is None:
            raise self._unknown(name, seqid)
        self._in.setvalue(message[body:])
        try:
            request = self._reader.read_struct(method.args()).request
        except UnicodeDecodeError:
            error = InvalidArgumentError(f"{method.name}: a string is not valid UTF-8")
            response = self.encode_error(method, error, seqid)
            raise UnreadableCallError(method.name, error.code.name, response) from None
        finally:
            if len(message) > _KEPT_BUFFER_BYTES_MAX:
                self._renew()
        if cut is not None:
            request.items = cut.batch(request.items)
        batch = getattr(request, method.batch, None) if method.batch is not None else None
        return method, seqid, request, len(batch) if batch else 0

    def refuse_call(self, message: bytes) -> NoReturn:
        """Scan a call, and raise what `decode_call` raises for a method that the contract does not have."""
        name, seqid, _ = scan_call(message, 0, len(message))
        raise self._unknown(name, seqid)

    def _unknown(self, name: bytes, seqid: int) -> UnreadableCallError:
        text = f"the contract has no method {name.decode('ascii')}"
        response = self.encode_application_error(name, UNKNOWN_METHOD, text, seqid)
        return UnreadableCallError("unknown", "UNKNOWN_METHOD", response)

    def decode_request(self, method: Method, data: bytes) -> Any:
        """Decode the request struct from the arguments `data` of a call, which `scan_call` must have walked.

        The result is None if the caller sent no request; so is every absent field or field of a wrong type. A list
        whose elements have a wrong type is empty. Raises UnicodeDecodeError for a string that is not UTF-8.
        """
        return self._decode(method.args(), data).request

    def decode_reply(self, message: bytes) -> Reply:
        """Decode the answer in `message` (a frame without its header).

        Raises FrameError for bytes that are not an answer; the connection is then useless.
        """
        kind, name, seqid, body = scan_reply(message, 0, len(message))
        method = METHODS_BY_NAME_BYTES.get(name)
        try:
            if kind == EXCEPTION:
                raised = self._decode(TApplicationException(), message[body:])
                error = ApplicationError(raised.type or 0, raised.message or "")
                return Reply(method, seqid, None, error)
            if method is None:
                raise FrameError("method_name", f"an answer to {name!r}, which the contract does not have")
            result = self._decode(method.result(), message[body:])
        except UnicodeDecodeError as error:
            raise FrameError("utf8", str(error)) from error
        if result.success is not None:
            return Reply(method, seqid, result.success, None)
        if result.error is None:
            raise FrameError("empty", f"an answer to {method.name} without result or exception")
        declared = result.error
        typed = error_for_code(
            declared.code or 0,
            declared.message or "",
            declared.retry_after_ms,
            declared.nothing_done,
            request_id=declared.request_id,
        )
        return Reply(method, seqid, None, typed)

    def _encode(self, kind: int, name: bytes, seqid: int, body: Any) -> bytes:
        encoded = self._encode_struct(body)
        size = _MESSAGE_HEAD_BYTES + len(name) + len(encoded)
        if size > limits.FRAME_BYTES_MAX:
            raise _too_large(size)
        return _HEADS[len(name)].pack(size, _VERSION_1 | kind, len(name), name, seqid) + encoded

    def _encode_struct(self, struct: Any) -> bytes:
        self._out.clean()
        self._writer.write_struct(struct)
        encoded: bytes = self._out.getvalue()
        if len(encoded) > _KEPT_BUFFER_BYTES_MAX:
            self._renew()
        return encoded

    def _decode(self, into: Any, data: bytes) -> Any:
        self._in.setvalue(data)
        try:
            return self._reader.read_struct(into)
        finally:
            if len(data) > _KEPT_BUFFER_BYTES_MAX:
                self._renew()

    def _renew(self) -> None:
        """Start with small buffers, because thriftpy2's only grow."""
        self._in = TCyMemoryBuffer()
        self._reader = TCyBinaryProtocol(self._in, strict_decode=True)
        self._out = TCyMemoryBuffer()
        self._writer = TCyBinaryProtocol(self._out)


def _constant(part: bytes) -> bytes:
    """Return bytes of a format that stand for themselves."""
    return part.replace(b"%", b"%%")


def _too_large(size_bytes: int) -> TooLargeError:
    return TooLargeError(f"the message has {size_bytes} bytes, a frame {limits.FRAME_BYTES_MAX}: ask for less")
