"""The locks, the record of known vulnerabilities, bills of materials and the pure wheel."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
import warnings
import zipfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import audit, sbom
from scripts.lock_files import EXTRAS, ROOT, Pin, command, digest, lock_path, pins, requirements
from tests.support.waiting import PROGRAM_S_MAX

TODAY = date(2026, 11, 27)
LOCKS = {"host": "sha256:" + "a" * 64}
PINS = [Pin("click", "8.5.1", "", ("sha256:" + "0" * 64,)), Pin("ply", "3.11", "", ("sha256:" + "1" * 64,))]
ALL_SAFE = {"dependencies": [{"name": pin.name, "version": pin.version, "vulns": []} for pin in PINS]}
FINDING = {"name": "click", "version": "8.5.1", "vulns": [{"id": "PYSEC-1", "fix_versions": ["8.6"]}]}


def unmet(name: str, root: Path = ROOT) -> list[str]:
    """The requirements of pyproject.toml that a lock does not meet."""
    found = pins(lock_path(name, root).read_text())
    wanted = [Requirement(one) for one in requirements(name, root)]
    return [
        str(one)
        for one in wanted
        if not any(pin.name == canonicalize_name(one.name) and one.specifier.contains(pin.version) for pin in found)
    ]


# ---- locks ----


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_each_requirement_in_a_version_that_is_allowed(name: str) -> None:
    assert unmet(name) == [], "make locks audit"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_has_a_hash_of_each_package_and_names_no_place_to_get_it_from(name: str) -> None:
    text = lock_path(name).read_text()
    assert [pin for pin in pins(text) if not pin.hashes] == []
    assert "://" not in text
    assert "--index" not in text
    assert len({(pin.name, pin.version) for pin in pins(text)}) == len(pins(text))


def test_a_requirement_that_is_new_or_narrower_is_missed_in_the_lock(tmp_path: Path) -> None:
    (tmp_path / "requirements").mkdir()
    lock_path("host", tmp_path).write_text(lock_path("host").read_text())
    project = (ROOT / "pyproject.toml").read_text()
    for old, new in (('"click>=8.1,<9"', '"click>=99"'), ('"click>=8.1,<9"', '"click>=8.1,<9", "brandnew"')):
        assert project.count(old) == 1
        (tmp_path / "pyproject.toml").write_text(project.replace(old, new))
        assert len(unmet("host", tmp_path)) == 1
    (tmp_path / "pyproject.toml").write_text(project)
    assert unmet("host", tmp_path) == []


def test_every_extra_that_users_run_hosts_and_jobs_with_has_a_lock() -> None:
    locked = {extra for extras in EXTRAS.values() for extra in extras}
    # Clients of other queues and a fuzzer, which only the makers of foqs use; cli is in host.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cli", "peers", "fuzz"} | locked == set(project["optional-dependencies"])
    assert all(word in command("host") for word in ("--generate-hashes", "--universal", "host", "zookeeper"))


@pytest.mark.parametrize(
    "text",
    [
        "click\n",
        "click>=8\n",
        "--index-url x\n",
        "click==8.5.1 \\\n    --hash=md5:00\n",
        "    --hash=sha256:" + "0" * 64,
    ],
)
def test_a_line_that_locks_nothing_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="which is no version and no hash"):
        pins(text)


def test_a_lock_is_read_with_its_markers_and_hashes() -> None:
    one, other = "sha256:" + "0" * 64, "sha256:" + "f" * 64
    text = (
        f"# c\nuvloop==0.23.0 ; sys_platform != 'win32' \\\n    --hash={one} \\\n    --hash={other}\n"
        "    # via foqs\nply==3.11\n"
    )
    assert pins(text) == [
        Pin("uvloop", "0.23.0", "sys_platform != 'win32'", (one, other)),
        Pin("ply", "3.11", "", ()),
    ]


# ---- the record of known vulnerabilities ----


def record(report: dict[str, Any], accepted: list[Any] | None = None, locks: dict[str, str] = LOCKS) -> dict[str, Any]:
    return audit.record_of(report, PINS, locks, accepted or [], TODAY)


def acceptance(until: str, reason: str = "not reached") -> dict[str, str]:
    return {"package": "click", "id": "PYSEC-1", "reason": reason, "until": until}


@pytest.mark.filterwarnings("default")
def test_the_record_is_of_these_locks_and_has_nothing_that_nobody_accepted() -> None:
    kept = json.loads(audit.RECORD.read_text())
    assert audit.problems(kept, audit.digests()) == []
    for told in audit.warnings_of(kept, datetime.now(UTC).date()):
        warnings.warn(told, stacklevel=1)


def test_a_record_of_another_lock_is_wrong() -> None:
    assert audit.problems(record(ALL_SAFE), LOCKS) == []
    (told,) = audit.problems(record(ALL_SAFE), {"host": "sha256:" + "b" * 64})
    assert told == "security/audit.json is not of requirements/host.lock as it is now: make audit"
    assert audit.problems(record(ALL_SAFE), LOCKS | {"spark": "sha256:" + "c" * 64})


def test_a_finding_is_wrong_until_it_is_accepted_with_a_reason() -> None:
    report = {"dependencies": [FINDING, ALL_SAFE["dependencies"][1]]}
    (told,) = audit.problems(record(report), LOCKS)
    assert "click 8.5.1 has PYSEC-1, fixed in 8.6" in told
    assert audit.problems(record(report, [acceptance("2026-12-31")]), LOCKS) == []
    (told,) = audit.problems(record(report, [acceptance("2026-12-31", " ")]), LOCKS)
    assert "without a reason" in told
    other = acceptance("2026-12-31") | {"package": "ply"}
    assert len(audit.problems(record(report, [other]), LOCKS)) == 1
    with pytest.raises(ValueError, match="isoformat"):
        audit.problems(record(report, [acceptance("soon")]), LOCKS)


def test_time_alone_warns_and_makes_nothing_wrong() -> None:
    report = {"dependencies": [FINDING, ALL_SAFE["dependencies"][1]]}
    kept = record(report, [acceptance("2026-12-31")])
    assert audit.warnings_of(kept, TODAY + timedelta(days=audit.OLD_DAYS)) == []
    told = audit.warnings_of(kept, TODAY + timedelta(days=400))
    assert [words.partition(":")[0] for words in told] == ["click", "the record of vulnerabilities is 400 days old"]
    assert audit.problems(kept, LOCKS) == []


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"dependencies": []},
        {"dependencies": [ALL_SAFE["dependencies"][0]]},
        {"dependencies": [ALL_SAFE["dependencies"][0], {"name": "ply", "skip_reason": "not found"}]},
        {"dependencies": [ALL_SAFE["dependencies"][0], {"name": "ply", "version": "3.10", "vulns": []}]},
    ],
)
def test_what_was_not_looked_up_is_never_told_to_be_safe(report: dict[str, Any]) -> None:
    kept = record(report)
    assert kept["checked"] is None
    assert "ply 3.11" in kept["unchecked"]
    assert any("were never looked up" in told for told in audit.warnings_of(kept, TODAY))
    assert record(ALL_SAFE)["checked"] == "2026-11-27"


def test_a_record_that_was_not_checked_says_what_was_not() -> None:
    assert audit.problems(record({}) | {"unchecked": []}, LOCKS)


def test_the_record_keeps_what_was_accepted_and_the_audit_fails_on_what_was_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.json"

    def safe_but(*findings: dict[str, Any]) -> Any:
        names = {one["name"] for one in findings}
        return lambda packages: {
            "dependencies": [*findings]
            + [{"name": pin.name, "version": pin.version, "vulns": []} for pin in packages if pin.name not in names]
        }

    (click,) = [pin for pin in pins(lock_path("host").read_text()) if pin.name == "click"]
    found = FINDING | {"version": click.version}
    assert audit.main(safe_but(), path) == 0
    assert json.loads(path.read_text())["checked"] is not None
    assert audit.main(safe_but(found), path) == 1
    assert "has PYSEC-1" in capsys.readouterr().err
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"accepted": [acceptance("2999-12-31")]}))
    assert audit.main(safe_but(found), path) == 0
    assert json.loads(path.read_text())["accepted"] == [acceptance("2999-12-31")]
    assert audit.main(lambda packages: {}, path) == 1, "nothing was looked up"
    assert json.loads(path.read_text())["checked"] is None


# ---- bills of materials ----


def component(pin: Pin) -> dict[str, Any]:
    hashes = [{"alg": "SHA-256", "content": one.removeprefix("sha256:")} for one in pin.hashes]
    return {"name": pin.name, "version": pin.version, "externalReferences": [{"hashes": hashes}]}


def test_a_bill_of_materials_that_is_not_of_its_lock_is_an_error() -> None:
    lock = "".join(f"{pin.name}=={pin.version} \\\n    --hash={pin.hashes[0]}\n" for pin in PINS)
    parts = [component(pin) for pin in PINS]
    sbom.check({"components": parts}, lock)
    for wrong in (
        parts[:1],
        [*parts, component(Pin("extra", "1", "", ()))],
        [parts[0], component(PINS[1]._replace(version="3.10"))],
        [parts[0], component(PINS[1]._replace(hashes=PINS[0].hashes))],
    ):
        with pytest.raises(ValueError, match="differs from its lock"):
            sbom.check({"components": wrong}, lock)


# ---- the pure wheel ----


@pytest.mark.deep
def test_two_builds_of_the_pure_wheel_are_the_same_to_the_byte(tmp_path: Path) -> None:
    sums: list[str] = []
    for number, umask in enumerate((0o022, 0o077)):
        directory = tmp_path / str(number)
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(ROOT)],
            env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "TZ": f"UTC-{number}"},
            check=True, timeout=PROGRAM_S_MAX, umask=umask,
        )  # fmt: skip
        (wheel,) = directory.glob("foqs-*-py3-none-any.whl")
        sums.append(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert sums[0] == sums[1]
    assert digest(wheel) == f"sha256:{sums[1]}"
    with zipfile.ZipFile(wheel) as built:
        names = set(built.namelist())
    of_console = [path for path in (ROOT / "foqs/console").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.suffix for path in of_console} >= {".html", ".css", ".js", ".svg", ".toml"}
    assert [path.name for path in of_console if path.relative_to(ROOT).as_posix() not in names] == []
