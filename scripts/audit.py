"""The record of known vulnerabilities of the packages in the locks: `security/audit.json`.

python -m scripts.audit    asks the database of advisories, by pip-audit, and writes the record (`make audit`)

The record says of which locks it is, when each package of them was looked up, and what was found. `checked` is null if
the database could not be asked about each of them: then the record says nothing about vulnerabilities. A finding can be
accepted, by hand, in `accepted`: with its reason and the day until which that holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from scripts.lock_files import EXTRAS, ROOT, Pin, digest, lock_path, pins

RECORD = ROOT / "security/audit.json"
OLD_DAYS = 30
"""The age from which on a record is told to be old."""
_TOOL = "build/tools/bin/pip-audit"
_AUDIT_S_MAX = 600

Record = Mapping[str, Any]


def digests(root: Path = ROOT) -> dict[str, str]:
    """Return the digest of each lock."""
    return {name: digest(lock_path(name, root)) for name in EXTRAS}


def ask(packages: Sequence[Pin]) -> dict[str, Any]:
    """Ask pip-audit about each version, and return its report: without a package about which it could not be asked."""
    found: list[Any] = []
    waiting = sorted(set(packages))
    while waiting:
        # A lock has other versions of a package for other Pythons, and pip-audit takes one at a time.
        now = list({pin.name: pin for pin in waiting}.values())
        waiting = [pin for pin in waiting if pin not in now]
        found += _report(now).get("dependencies", [])
    return {"dependencies": found}


def _report(packages: Sequence[Pin]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        asked = Path(directory) / "requirements.txt"
        asked.write_text("".join(f"{pin.name}=={pin.version}\n" for pin in packages))
        words = [_TOOL, "-r", str(asked), "--no-deps", "--disable-pip", "--progress-spinner=off", "-f", "json"]
        try:
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=_AUDIT_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            print(f"pip-audit could not be run: {error}", file=sys.stderr)
            return {}
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        print(f"pip-audit gave no report: {done.stderr[-500:]}", file=sys.stderr)
        return {}
    return report if isinstance(report, dict) else {}


def record_of(
    report: Mapping[str, Any], packages: Sequence[Pin], locks: Mapping[str, str], accepted: Sequence[Any], today: date
) -> dict[str, Any]:
    """Make the record of a report. It is one of a check only if the report has an answer about each package."""
    answers = {
        (one["name"].lower().replace("_", "-"), one["version"]): one.get("vulns", [])
        for one in report.get("dependencies", [])
        if "skip_reason" not in one
    }
    unchecked = sorted({f"{pin.name} {pin.version}" for pin in packages if (pin.name, pin.version) not in answers})
    findings = [
        {"package": name, "version": version, "id": vuln["id"], "fixed_in": list(vuln.get("fix_versions", []))}
        for (name, version), vulns in sorted(answers.items())
        for vuln in vulns
    ]
    return {
        "locks": dict(locks),
        "checked": None if unchecked else today.isoformat(),
        "unchecked": unchecked,
        "findings": findings,
        "accepted": list(accepted),
    }


def problems(record: Record, locks: Mapping[str, str]) -> list[str]:
    """Return what is wrong with a record, whatever the day is: it is of other locks, or has what nobody accepted."""
    found = [
        f"security/audit.json is not of requirements/{name}.lock as it is now: make audit"
        for name, wanted in locks.items()
        if record["locks"].get(name) != wanted
    ]
    if record["checked"] is None and not record["unchecked"]:
        found.append("security/audit.json was not checked, and does not say what was not: make audit")
    for one in record["accepted"]:
        if not str(one.get("reason", "")).strip():
            found.append(f"{one.get('id')} is accepted without a reason in security/audit.json: write one")
        date.fromisoformat(one["until"])
    accepted = {(one["package"], one["id"]) for one in record["accepted"]}
    found += [
        f"{one['package']} {one['version']} has {one['id']}, fixed in {', '.join(one['fixed_in']) or 'no version'}: "
        "raise it (make locks), or accept it in security/audit.json with a reason and a day"
        for one in record["findings"]
        if (one["package"], one["id"]) not in accepted
    ]
    return found


def warnings_of(record: Record, today: date) -> list[str]:
    """Return what time has done to a record. It is told and fails nothing: a day alone must not stop a change."""
    told = [
        f"{one['package']}: {one['id']} was accepted until {one['until']}: look again"
        for one in record["accepted"]
        if date.fromisoformat(one["until"]) < today
    ]
    if record["checked"] is None:
        told.append(
            f"{len(record['unchecked'])} packages were never looked up in the database of advisories: make audit, "
            "where it can be reached"
        )
    elif (age_days := (today - date.fromisoformat(record["checked"])).days) > OLD_DAYS:
        told.append(f"the record of vulnerabilities is {age_days} days old: make audit")
    return told


def main(ask: Callable[[Sequence[Pin]], dict[str, Any]] = ask, path: Path = RECORD) -> int:
    """Write the record, and say what is wrong. Fails if a finding is not accepted, or its day is over."""
    packages = sorted({pin for name in EXTRAS for pin in pins(lock_path(name).read_text())})
    accepted = json.loads(path.read_text())["accepted"] if path.exists() else []
    today = datetime.now(UTC).date()
    record = record_of(ask(packages), packages, digests(), accepted, today)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record, indent=2) + "\n")
    told = [*problems(record, digests()), *warnings_of(record, today)]
    for line in told:
        print(line, file=sys.stderr)
    print(f"{path.name}: {len(packages)} packages, {len(record['findings'])} findings, checked: {record['checked']}")
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
