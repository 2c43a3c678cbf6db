"""Running a host in the foreground until a signal ends it."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module

import uvloop

from foqs.cli.output import Exit, exit_of, leave, note
from foqs.config import HostConfig
from foqs.model.errors import FoqsError
from foqs.model.limits import KIB, MIB
from foqs.storage.schema.migrations import MigrationError

_GC_THRESHOLDS = (1_000, 2, 8_000)
"""Thresholds of the three generations of the garbage collector.

A collection holds up the event loop for one to three microseconds per container, so one of the second generation, which
looks at about 4,000 containers, takes a few milliseconds. A full collection walks everything in memory. With the
defaults such collections took a tenth of a busy host's time; now one comes after the enqueue of some 10 million items
at the earliest, when a quarter of all is new.
"""
_MAPPED_BYTES_MIN = 128 * KIB
"""Least size of a block of memory with pages of its own, which return to the system when it is freed, in bytes. This
is glibc's initial value. By default glibc raises it up to 32 MiB as large payloads arrive, and then keeps their
memory between smaller ones.
"""
_FREE_BYTES_MAX = 16 * MIB
"""Free memory to keep at the end of the heap, in bytes, because it may be needed again soon."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The numbers of these options in malloc.h."""
_SWITCH_S = 0.0005
"""Longest wait of the event loop for a computing thread at each wake-up, in seconds: a tenth of the default."""


def run_until_signal(
    config: HostConfig,
    on_ready: Callable[[int], None],
    load_config: Callable[[], HostConfig] | None = None,
    others: Sequence[HostConfig] = (),
) -> None:
    """Run a host until SIGINT or SIGTERM, then drain it; the second of these signals ends the process at once.

    On SIGHUP the host takes changes from `load_config`. Without `load_config` SIGHUP drains the host too, because then
    it means that the terminal was closed. `on_ready` gets the bound port, once all hosts serve. `others` are further
    hosts that run beside it in this process. If a host cannot start, exit with the code of the reason: UNAVAILABLE for
    a problem that may end by itself.
    """
    if load_config is not None:
        # Ignore a reload while the host is still being imported, because its configuration was read a moment ago.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    tune_interpreter()
    try:
        uvloop.run(_serve(config, on_ready, load_config, others))
    except OSError as error:
        metrics = f", with metrics on {config.metrics_address}:{config.metrics_port}" if config.metrics_port else ""
        note(f"error: cannot serve on {config.listen_address}:{config.port}{metrics}: {error}")
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            note(f"choose another port with {'--port or --metrics-port' if metrics else '--port'}")
        leave(Exit.FAILURE)
    except MigrationError as error:
        note(f"error: {error}")
        leave(Exit.FAILURE)
    except FoqsError as error:
        note(f"error: {error}")
        leave(exit_of(error))


def tune_interpreter() -> None:
    """Collect garbage seldom, and exclude the host's code from collections, because walking it takes 40 ms each time.

    A queue makes and drops many objects, and few are in cycles. Also make threads that compute, such as a scrape of the
    metrics, yield to the event loop soon, and return the memory of large items to the system.
    """
    import_module("foqs.supervised")  # Not before a host is wanted, because other commands start faster without it.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)
    with suppress(AttributeError, OSError):  # Only glibc has it.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES_MAX)


async def _serve(
    config: HostConfig,
    on_ready: Callable[[int], None],
    load_config: Callable[[], HostConfig] | None,
    others: Sequence[HostConfig],
) -> None:
    from foqs.notify import Notifier
    from foqs.supervised import Orders, run_host

    loop = asyncio.get_running_loop()
    # A supervisor hears of `foqs host` alone: `foqs dev` is for a terminal.
    notifier = Notifier() if load_config is None else Notifier.from_environment(os.environ, os.getpid())
    orders = Orders(loop.create_future(), asyncio.Event(), load_config or (lambda: config), notifier)

    def stop(name: str) -> None:
        if orders.stop.done():
            return
        orders.stop.set_result(name)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        with suppress(OSError):  # The terminal may be gone.
            note("draining; a second signal ends at once")

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number.name)
    if load_config is None:
        loop.add_signal_handler(signal.SIGHUP, stop, signal.SIGHUP.name)
    else:
        loop.add_signal_handler(signal.SIGHUP, orders.reload.set)
    ports: dict[str, int] = {}

    def serves(name: str, port: int) -> None:
        ports[name] = port
        if len(ports) == 1 + len(others):
            on_ready(ports[config.host_name])

    try:
        async with asyncio.TaskGroup() as hosts:
            for one in (config, *others):
                hosts.create_task(run_host(one, orders, partial(serves, one.host_name)), name=one.host_name)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from failed
