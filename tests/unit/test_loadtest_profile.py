"""What is made of py-spy's samples."""

from __future__ import annotations

from pathlib import Path

from loadtest.bench.profile import by_file, by_function, parse

_HERE = Path(__file__).resolve().parents[2]
_SAMPLES = parse(
    f"<module> (/usr/bin/foqs);run ({_HERE}/foqs/shard/writer/health.py);pack ({_HERE}/foqs/shard/state/index.py) 3\n"
    f"<module> (/usr/bin/foqs);run ({_HERE}/foqs/shard/writer/health.py) 2\n"
    f"other (x);pack ({_HERE}/foqs/shard/state/index.py) 4\n"
    f"other (x);look ({_HERE}/foqs/shard/state/index.py) 1\n"
    "other (x);Codec.read (/env/lib/python3.11/site-packages/pymysql/protocol.py) 5\n"
    "other (x);Event.wait (/python/lib/python3.11/threading.py) 6\n"
)


def test_only_the_innermost_function_of_a_stack_is_counted() -> None:
    assert by_function(_SAMPLES) == {
        "foqs/shard/state/index.py pack": 7,
        "foqs/shard/writer/health.py run": 2,
        "foqs/shard/state/index.py look": 1,
        "pymysql/protocol.py Codec.read": 5,
        "threading.py Event.wait": 6,
    }


def test_a_file_has_the_sum_of_its_functions() -> None:
    files = by_file(by_function(_SAMPLES))
    assert files["foqs/shard/state/index.py"] == 8
    assert files.total() == _SAMPLES.total()
