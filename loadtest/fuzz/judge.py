"""What the frame path may do with a message, and the proof that it did no more: for every fuzzer in one process."""

from __future__ import annotations

import time
from typing import Any

from foqs.host import arguments
from foqs.host.verbs.exports import checked_query
from foqs.model import limits
from foqs.model.errors import FoqsError
from foqs.model.namespace import NamespaceSettings, check_namespace_name, with_changes
from foqs.transport.verb_table import check_required
from foqs.wire.codec import LENGTH_BYTES, METHODS_BY_NAME_BYTES, Codec, Method
from foqs.wire.frames import EXCEPTION, REPLY, FrameError, scan_call

STALL_S_MAX = 0.05
_LOOK_CLOSER_S = 0.01
_NOW_MS = 1_700_000_000_000
_SETTINGS = NamespaceSettings()


class DefectError(Exception):
    """The frame path did what it must not."""


class Judge:
    """Takes messages the way a connection does, and checks what comes out.

    Not `scans`: gives the decoder all that has a method's name, which shows that the checks can fail.
    """

    def __init__(self, *, scans: bool = True) -> None:
        self._codec = Codec()
        self._scan = scan_call if scans else _read_head
        self.slowest_s = 0.0

    def judge(self, data: bytes, *, thoroughly: bool = False) -> str:
        """How the message ended: a word. Raises DefectError.

        `thoroughly` also encodes what was decoded, and decodes it again.
        """
        started_s, cpu_started_s = time.perf_counter(), time.process_time()
        try:
            outcome, method, request = self._take(data)
        except Exception as error:
            raise DefectError(f"{type(error).__name__}: {error}") from error
        elapsed_s = time.perf_counter() - started_s
        if elapsed_s > _LOOK_CLOSER_S:
            # What others took of the processor is not the message's fault.
            elapsed_s = min(elapsed_s, time.process_time() - cpu_started_s)
        self.slowest_s = max(self.slowest_s, elapsed_s)
        if elapsed_s > STALL_S_MAX:
            raise DefectError(f"took {elapsed_s * 1000:.0f} ms of the processor")
        if request is not None:
            found = _Size()
            found.add(request)
            if found.text_bytes > len(data):
                raise DefectError(f"{found.text_bytes} bytes came out of a message of {len(data)}")
            if found.values > limits.FRAME_ELEMENTS_MAX * 16:
                raise DefectError(f"{found.values} values came out of a message of {len(data)} bytes")
            if thoroughly and method is not None:
                self._repeat(method, request)
        return outcome

    def _take(self, data: bytes) -> tuple[str, Method | None, Any]:
        try:
            name, _, body = self._scan(data, 0, len(data))
        except FrameError as error:
            if error.reason == "message_type" and data[3] in (REPLY, EXCEPTION):
                return self._take_answer(data)
            return f"closed: {error.reason}", None, None
        method = METHODS_BY_NAME_BYTES.get(name)
        if method is None:
            return "unknown method", None, None
        try:
            request = self._codec.decode_request(method, data[body:])
        except UnicodeDecodeError:
            return "refused: not UTF-8", None, None
        try:
            check_required(method, request)
            check_arguments(request)
        except FoqsError as error:
            return f"refused: {error.code.name}", method, request
        return "accepted", method, request

    def _take_answer(self, data: bytes) -> tuple[str, None, Any]:
        """The way a client takes it."""
        try:
            reply = self._codec.decode_reply(data)
        except FrameError as error:
            return f"answer: {error.reason}", None, None
        return "answer: accepted", None, reply.response

    def _repeat(self, method: Method, request: Any) -> None:
        frame = self._codec.encode_call(method.name, request, 1)
        _, _, body = scan_call(frame, LENGTH_BYTES, len(frame))
        if self._codec.decode_request(method, frame[body:]) != request:
            raise DefectError("encoding and decoding again gives another request")


def _read_head(data: bytes, start: int, end: int) -> tuple[bytes, int, int]:
    name_bytes = int.from_bytes(data[4:8], "big")
    return data[8 : 8 + name_bytes], 0, 12 + name_bytes


def check_arguments(request: Any) -> None:
    """The rules of the contract on what was decoded, as far as they need no shard. Raises FoqsError."""
    name = getattr(request, "namespace_name", None)
    if name is not None:
        check_namespace_name(name)
    for item in getattr(request, "items", None) or ():
        arguments.check_topic(item.topic)
        arguments.check_item(item, _SETTINGS, _NOW_MS)
    if hasattr(request, "split"):
        checked_query(request)
        return
    for demand in getattr(request, "topics", None) or ():
        arguments.check_topic(getattr(demand, "topic", demand))  # Some calls name topics alone.
        arguments.check_range("count", demand.count, 1, limits.BATCH_ITEMS_MAX)
    settings = getattr(request, "settings", None)
    if settings is not None:
        with_changes(_SETTINGS, settings)


class _Size:
    """Of a decoded request."""

    def __init__(self) -> None:
        self.text_bytes = 0
        self.values = 0

    def add(self, value: Any) -> None:
        self.values += 1
        if isinstance(value, bytes):
            self.text_bytes += len(value)
        elif isinstance(value, str):
            self.text_bytes += len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            for element in value:
                self.add(element)
        elif isinstance(value, dict):
            for element in value.values():
                self.add(element)
        elif hasattr(value, "thrift_spec"):
            for part in vars(value).values():
                if part is not None:
                    self.add(part)
