"""The programs of others that the console gives to browsers are those that their authors have published."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import foqs

_STATIC = Path(foqs.__file__).parent / "console/static"
_VENDOR = _STATIC / "vendor"


def test_each_vendored_file_is_listed_with_its_hash() -> None:
    listed = tomllib.loads((_VENDOR / "vendor.toml").read_text())
    files = {path.name: path for path in _VENDOR.iterdir() if path.name != "vendor.toml"}
    assert files.keys() == listed.keys()
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == listed[name]["sha256"], name
        assert "@" in listed[name]["package"], name


def test_no_static_file_of_the_console_names_another_site() -> None:
    for path in [*_STATIC.glob("*.js"), *_STATIC.glob("*.css"), *(_STATIC.parent / "templates").glob("*.html")]:
        text = path.read_text().replace("http://www.w3.org/2000/svg", "").replace("sourceMappingURL", "")
        assert "//" not in text.replace("// ", "").replace(":// ", ""), path.name
        assert "http:" not in text, path.name
