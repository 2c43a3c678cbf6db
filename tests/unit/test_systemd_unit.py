"""deploy/systemd/foqs.service is right for systemd, and agrees with the host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from foqs.cli.output import Exit
from foqs.model import limits
from foqs.notify import BEAT_MS_MAX
from tests.support.outside_tools import outside_tool
from tests.support.waiting import PROGRAM_S_MAX

_UNIT = Path(__file__).parents[2] / "deploy/systemd/foqs.service"
_PROGRAM = "/opt/foqs/bin/foqs"
_STOP_BEYOND_DRAIN_S = 20
"""The time after a drain that docs/operations.md asks of supervisors."""


def _settings() -> dict[str, str]:
    lines = [line.partition("=") for line in _UNIT.read_text().splitlines() if line and line[0] not in "#["]
    return {key: value for key, _, value in lines}


def _complaints(folder: Path, text: str) -> str:
    """What systemd says of a unit whose program is there."""
    unit = folder / "foqs.service"
    unit.write_text(text.replace(_PROGRAM, sys.executable))
    done = subprocess.run(
        [outside_tool("systemd-analyze", "systemd"), "verify", unit],
        capture_output=True,
        text=True,
        timeout=PROGRAM_S_MAX,
        check=False,
    )
    return done.stdout + done.stderr + ("" if done.returncode == 0 else f"exit code {done.returncode}")


def test_systemd_has_no_complaint(tmp_path: Path) -> None:
    text = _UNIT.read_text()
    assert text.count(_PROGRAM) == 1
    assert _complaints(tmp_path, text) == ""


def test_a_misspelt_setting_is_found(tmp_path: Path) -> None:
    misspelt = _UNIT.read_text().replace("WatchdogSec=", "WatchdogSecs=")
    assert "WatchdogSecs" in _complaints(tmp_path, misspelt)
    assert "exit code" in _complaints(tmp_path, _UNIT.read_text().replace(_PROGRAM, "bin/foqs"))


def test_little_is_open_to_the_service() -> None:
    command = [outside_tool("systemd-analyze", "systemd"), "security", "--offline=true", "--threshold=20", _UNIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_times_and_exit_codes_are_those_of_the_host() -> None:
    settings = _settings()
    assert settings["Type"] == "notify"
    assert int(settings["TimeoutStopSec"]) * 1_000 >= limits.DRAIN_MS_MAX + _STOP_BEYOND_DRAIN_S * 1_000
    assert int(settings["WatchdogSec"]) * 1_000 >= 2 * max(BEAT_MS_MAX, limits.LOOP_SILENCE_MS_MAX)
    assert settings["RestartPreventExitStatus"] == str(int(Exit.USAGE))
    assert settings["LoadCredential"].partition(":")[0] == "meta_password"
