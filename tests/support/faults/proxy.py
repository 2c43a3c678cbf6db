"""A TCP proxy that loses answers: what was asked is done, and whoever asked does not hear of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from enum import Enum
from types import TracebackType
from typing import Self

from tests.support.faults import FaultError
from tests.support.waiting import PATIENCE_S

_CHUNK_BYTES = 64 * 1024


class Cut(Enum):
    """What becomes of a connection when the next bytes of an answer arrive from the far side."""

    LATE = "late"
    """The near side sees its end at once; the far side may finish what it is at, and then sees the end."""
    ABRUPT = "abrupt"
    """Both sides see the end at once."""
    AFTER = "after"
    """These bytes are passed on, then both sides see the end."""


class CuttingProxy:
    """Listens on a port of 127.0.0.1; `connect` opens a connection to the far side. A context manager."""

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._changed = threading.Condition()
        self._armed: Cut | None = None
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._stopped = False

    def cut(self, how: Cut) -> None:
        """Cut one connection, the first that has an answer; returns once that has happened."""
        with self._changed:
            self.arm(how)
            if not self._changed.wait_for(lambda: self._armed is None, PATIENCE_S):
                raise FaultError("no answer came that could be cut")

    def arm(self, how: Cut) -> None:
        """Let the next answer be cut; returns at once."""
        with self._changed:
            self._armed = how

    def is_armed(self) -> bool:
        """Whether no answer came since `arm` that was cut."""
        return self._armed is not None

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        with self._changed:
            self._stopped = True
            for sock in self._open:
                _end(sock, socket.SHUT_RDWR)
        _end(self._listener, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(PATIENCE_S)
            if thread.is_alive():
                raise FaultError(f"{thread.name} does not end")
        self._listener.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, name=f"proxy{work.__name__}")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # Closed: the proxy ends.
            try:
                far = self._connect()
            except OSError:
                near.close()
                continue
            with self._changed:
                if self._stopped:
                    near.close()
                    far.close()
                    return
                self._open |= {near, far}
            self._run(self._serve, near, far)

    def _serve(self, near: socket.socket, far: socket.socket) -> None:
        """Both directions of one connection, and its end."""
        asking = threading.Thread(target=_pump, args=(near, far), name="proxy-asking")
        asking.start()
        how = self._answer(far, near)
        _end(near, socket.SHUT_RDWR)
        if how is Cut.LATE:
            _drain(far)
        _end(far, socket.SHUT_RDWR)
        asking.join(PATIENCE_S)
        with self._changed:
            self._open -= {near, far}
        near.close()
        far.close()

    def _answer(self, far: socket.socket, near: socket.socket) -> Cut | None:
        """Pass answers on until one is to be cut."""
        while data := _receive(far):
            how = self._take_cut()
            if how in (None, Cut.AFTER) and not _send(near, data):
                return None
            if how is not None:
                return how
        return None

    def _take_cut(self) -> Cut | None:
        with self._changed:
            how, self._armed = self._armed, None
            self._changed.notify_all()
        return how


def _pump(source: socket.socket, target: socket.socket) -> None:
    while data := _receive(source):
        if not _send(target, data):
            return
    _end(target, socket.SHUT_WR)


def _drain(sock: socket.socket) -> None:
    while _receive(sock):
        continue


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(_CHUNK_BYTES)
    except OSError:
        return b""  # A peer that resets is at its end too.


def _send(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def _end(sock: socket.socket, direction: int) -> None:
    try:
        sock.shutdown(direction)
    except OSError:
        return  # Not connected any more, which is what was asked for.
