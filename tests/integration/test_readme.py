"""The examples of the README run, and do what the README says."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S

_README = Path(__file__).parents[2] / "README.md"


def _examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", _README.read_text(), re.DOTALL)


async def test_the_first_example_of_the_readme_runs(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as running:
        await running.admin.create_namespace("default")
        arguments = [sys.executable, "-c", _examples()[0], running.address]
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        async with asyncio.timeout(PATIENCE_S):
            output, _ = await process.communicate()
    assert process.returncode == 0
    assert output.decode().splitlines() == [
        "-5 an urgent one",
        "10 an ordinary one",
        "emails 0 ready, 1 delayed",
        "reports 0 ready, 1 delayed",
    ]


async def test_the_worker_of_the_readme_works_until_a_signal(meta_url: str, shard_urls: dict[int, str]) -> None:
    (_, example) = _examples()
    async with running_host(meta_url, shard_urls) as running:
        await running.admin.create_namespace("default")
        await running.client.enqueue("default", "emails", b"one")
        arguments = [sys.executable, "-u", "-c", example, running.address]
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE_S):
                assert await process.stdout.readline() == b"sending one attempt 1\n"
                process.send_signal(signal.SIGINT)
                assert (await process.communicate())[0] == b""
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode == 0
        assert running.items_stored() == 0
