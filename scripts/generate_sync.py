"""Makes the blocking client of the asyncio one: foqs/client/aio is written by hand, foqs/client/sync is generated.

python -m scripts.generate_sync          brings the generated modules up to date
python -m scripts.generate_sync --check  says which are not, and fails

The transformation is one of text, as psycopg and httpcore do it: `async` and `await` go away, names lose their "Async",
and sentences of docstrings that are true of asyncio alone are replaced by those of PROSE. What threads and tasks do
differently stands in modules that are written by hand on both sides: HANDWRITTEN.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "foqs/client/aio"
TARGET = ROOT / "foqs/client/sync"
HANDWRITTEN = {
    "__init__.py",
    "coalescer.py",
    "concurrency.py",
    "connections.py",
    "late.py",
    "monitor.py",
    "over_tls.py",
}

_CODE = [
    (r"\bfoqs\.client\.aio\b", "foqs.client.sync"),
    (r"\ban (`?)async (for|with)\b", r"a \1\2"),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\bASYNC_", ""),
    (r"_async_", "_"),
    (r"\b__a(iter|next|enter|exit)__", r"__\1__"),
]
PROSE = {
    "A client of the queue for the tasks of one event loop; close it, or use it in": (
        "A blocking client of the queue, safe for threads; close it, or use it in"
    ),
    "No new call is sent on the connection of an attempt that timed out.": (
        "The connection of an attempt that timed out is closed."
    ),
    "connections_max (4): each one has up to 64 calls in flight; further tasks wait.": (
        "connections_max (8): each one has one call in flight; further threads wait."
    ),
    "A call that is cancelled might have been done.\n    A dequeue that is cancelled or runs out of time ends": (
        "A dequeue that runs out of time ends"
    ),
    "A client of service FoqsAdmin for one event loop, used by": "A blocking client of service FoqsAdmin, used by",
    "this many calls at a time.": "this many threads.",
    "Iterate once; items can be settled anywhere.": "Iterate once, in one thread; items can be settled in any.",
    "`stop` can take as long to take effect.": "`stop` from another thread can take as long.",
    "one task sends settlements, one keeps leases alive": "one thread sends settlements, one keeps leases alive",
    "`concurrency` of them at a time, each in a task.": "`concurrency` of them at a time, each in a thread.",
    "Handlers that run longer are cancelled and\n    their items released. Cancelling run() ends it the same way. A "
    "worker runs once.": (
        "Handlers that run longer are left behind,\n    and their items are redelivered when the leases end. "
        "A worker runs once."
    ),
    "Ask run() to end. Returns at once.": "Ask run() to end, from any thread or a signal handler. Returns at once.",
}


def sources() -> list[Path]:
    return sorted(path for path in SOURCE.glob("*.py") if path.name not in HANDWRITTEN)


def target_of(source: Path) -> Path:
    return TARGET / source.name


def generated(text: str, name: str) -> str:
    """The blocking twin of an asyncio module, formatted."""
    for prose, blocking in PROSE.items():
        text = text.replace(prose, blocking)
    for pattern, replacement in _CODE:
        text = re.sub(pattern, replacement, text)
    header = f"# Generated from foqs/client/aio/{name} by scripts/generate_sync.py: edit that one.\n"
    fixes = ("--fix", "--unsafe-fixes", "--select", "F401,I,UP028", "--quiet")
    return _ruff("format", _ruff("check", header + text, *fixes))


def _ruff(command: str, text: str, *options: str) -> str:
    """The text as `ruff` leaves it: imports that are of no use any more go, and lines are joined."""
    arguments = [sys.executable, "-m", "ruff", command, *options, "--stdin-filename", str(TARGET / "made.py"), "-"]
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"ruff {command} failed: {done.stderr or done.stdout}")
    return done.stdout


def unused_prose() -> list[str]:
    """Sentences of PROSE that stand nowhere any more."""
    texts = [path.read_text() for path in sources()]
    return [prose for prose in PROSE if not any(prose in text for text in texts)]


def main(arguments: list[str]) -> int:
    if left := unused_prose():
        print("no longer in foqs/client/aio:", *left, sep="\n  ")
        return 1
    stale = []
    for source in sources():
        target, text = target_of(source), generated(source.read_text(), source.name)
        if not target.exists() or target.read_text() != text:
            stale.append(target.relative_to(ROOT))
            if "--check" not in arguments:
                target.write_text(text)
    for name in stale:
        print(f"{name}: {'out of date' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
