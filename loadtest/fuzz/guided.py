"""The coverage-guided half: `python -m loadtest.fuzz.frames --guided` starts it, with libFuzzer's options.

The scan, the required fields and the rules for arguments are instrumented, and so their branches lead the way.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["foqs.wire.frames", "foqs.transport.verb_table", "foqs.host.arguments", "foqs.model.namespace"]
):
    from loadtest.fuzz.judge import Judge

from loadtest.fuzz.corpus import seed_answers, seed_messages
from loadtest.fuzz.mutations import Mutator

MESSAGE_BYTES_MAX = 64 * 1024
RSS_MIB_MAX = 512
ALLOCATION_MIB_MAX = 64
HANG_S_MAX = 2


def main() -> None:
    judge = Judge()
    seeds = seed_messages() + seed_answers()

    def take(data: bytes) -> None:
        judge.judge(data, thoroughly=True)

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        """By turns as libFuzzer does, which knows bytes, and as the mutator does, which knows messages."""
        if seed % 2:
            return bytes(atheris.Mutate(data, size_max))
        return Mutator(seed, seeds).mutate(bytearray(data))[:size_max]

    options = [
        f"-max_len={MESSAGE_BYTES_MAX}",
        f"-rss_limit_mb={RSS_MIB_MAX}",
        f"-malloc_limit_mb={ALLOCATION_MIB_MAX}",
        f"-timeout={HANG_S_MAX}",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, *sys.argv[1:]], take, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
