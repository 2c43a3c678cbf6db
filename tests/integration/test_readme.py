"""The example of the README runs, and does what the README says."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.support.running_host import PATIENCE_S, running_host

_README = Path(__file__).parents[2] / "README.md"


async def test_the_example_of_the_readme_runs(meta_url: str, shard_urls: dict[int, str]) -> None:
    example = re.search(r"```python\n(.*?)```", _README.read_text(), re.DOTALL)
    assert example is not None
    async with running_host(meta_url, shard_urls) as running:
        await running.admin.create_namespace("default")
        arguments = [sys.executable, "-c", example[1], running.address]
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
