"""The Python programs of a page, and what each prints against a host."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

from tests.support.waiting import PATIENCE_S

_ADDRESS = "127.0.0.1:7600"
_RUNS_UNTIL_A_SIGNAL = "Worker(client, "


def programs(page: Path) -> dict[str, list[str]]:
    """The programs of a page by the heading that they stand below."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^##+ ", page.read_text(), flags=re.MULTILINE)[1:]:
        if blocks := re.findall(r"```python\n(.*?)```", part, re.DOTALL):
            found[part.partition("\n")[0]] = blocks
    return found


async def printed(program: str, address: str, lines_expected: int) -> list[str]:
    """What a program prints; one that runs until a signal gets one when it has printed all that it should."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-u",
        "-c",
        program.replace(_ADDRESS, address),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            lines = [(await process.stdout.readline()).decode().rstrip() for _ in range(lines_expected)]
            if _RUNS_UNTIL_A_SIGNAL in program and "worker.stop()" not in program:
                process.send_signal(signal.SIGTERM)
            rest, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return [*lines, *rest.decode().splitlines()]
