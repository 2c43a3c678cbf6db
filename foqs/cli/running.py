"""Running a host in the foreground until a signal ends it."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import gc
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
from foqs.storage.migrations import MigrationError

_GC_THRESHOLDS = (5_000, 4, 1_000)
"""Containers made and not dropped before the youngest are looked at, and how often that is before the older ones are.

Several times the default: collections were a tenth of a busy host's time. The second one looks at about 20,000. The
last one walks all that is kept in memory; it comes after 20 million at the soonest, when a quarter of it is new.
"""
_MAPPED_BYTES_MIN = 128 * KIB
"""Memory of this size has pages of its own, which go back to the system with it: glibc's first choice. By itself it
would raise this up to 32 MiB as large payloads come, and keep what they had between smaller ones.
"""
_FREE_BYTES_MAX = 16 * MIB
"""Free memory at the end of the heap that is kept, because it may be needed again soon."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""The numbers that malloc.h gives these options."""
_SWITCH_S = 0.0005
"""A tenth of the default: so long may the event loop wait for a thread that computes, each time that it wakes up."""


def run_until_signal(
    config: HostConfig,
    on_ready: Callable[[int], None],
    load_config: Callable[[], HostConfig] | None = None,
    others: Sequence[HostConfig] = (),
) -> None:
    """Run a host until SIGINT or SIGTERM, then drain it; the second of these signals ends the process at once.

    SIGHUP has the host take what may change from `load_config`; without one it drains like the others, for then the
    terminal was closed. `on_ready` gets the port that is bound, once all hosts serve. `others` are further hosts that
    run beside it in this process. When a host cannot start this leaves with the code of the reason: UNAVAILABLE
    for what may be there soon.
    """
    if load_config is not None:
        # A reload that comes while the host is still being imported: its configuration was read a moment ago.
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
    """Collect garbage seldom, and never again in the host's code, which a full collection takes 40 ms to walk.

    A queue makes and drops many objects, nearly all of them in no cycle. And threads that compute, as for a scrape of
    the metrics, give way to the event loop soon. Memory that large items had goes back to the system.
    """
    import_module("foqs.supervised")  # not before a host is wanted: other commands start faster without
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
    from foqs.supervised import Orders, run_host

    loop = asyncio.get_running_loop()
    orders = Orders(loop.create_future(), asyncio.Event(), load_config or (lambda: config))

    def stop(name: str) -> None:
        if orders.stop.done():
            return
        orders.stop.set_result(name)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        with suppress(OSError):  # The terminal may be what has gone.
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
