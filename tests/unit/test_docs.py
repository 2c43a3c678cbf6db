"""The documents hold: links lead somewhere, generated parts are current, commands and examples exist."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click
import pytest
import thriftpy2

from foqs.cli.main import cli
from foqs.config import load_config
from foqs.model import limits
from scripts import code_tables, idl_tables
from scripts.generate_docs import ROOT, SECTIONS, documents, up_to_date

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "loadtest/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^ +(?:\.venv/bin/)?|`)foqs (?P<words>[a-z][^`#\n]*)", re.MULTILINE)
_MAKE = re.compile(r"(?:^ +|`)make (?P<target>[a-z-]+)(?=`|$|\s+#)", re.MULTILINE)
_LIMIT = re.compile(r"^\| (`\w+`) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
_TEST = re.compile(r"(?P<file>(?:tests/(?:\w+/)+\w+|\btest_\w+)\.py)(?:::(?P<name>test_\w*\w)(?P<dots>_?\.\.\.)?)?")
_EVENT = re.compile(r"^\| `(?P<name>[^`]+)` \| (?P<level>debug|info|warning|error) \|", re.MULTILINE)


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text())):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        goal = (page.parent / path).resolve() if path else page
        if not goal.exists() or (anchor and anchor not in _anchors(goal)):
            broken.append(target)
    assert not broken


def test_no_page_holds_an_unfinished_merge() -> None:
    marks = re.compile(r"^(<{7} |={7}$|>{7} )", re.MULTILINE)
    assert [_name(page) for page in PAGES if marks.search(page.read_text())] == []


def test_every_file_of_the_code_that_a_document_names_exists() -> None:
    named = {(_name(page), path) for page in PAGES for path in re.findall(r"\bfoqs(?:/\w+)+\.py\b", page.read_text())}
    assert len(named) > 50
    assert sorted((page, path) for page, path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("page", documents(), ids=_name)
def test_generated_parts_are_current(page: Path) -> None:
    text = page.read_text()
    assert up_to_date(text) == text, "run: .venv/bin/python -m scripts.generate_docs"


def test_each_limit_is_on_one_page_and_has_a_meaning() -> None:
    rows = [
        [cell.strip(" `") for cell in row]
        for page in ("limits.md", "limits-internal.md")
        for row in _LIMIT.findall((ROOT / "docs" / page).read_text())
    ]
    units = {"KIB", "MIB", "SECOND_MS", "MINUTE_MS", "HOUR_MS", "DAY_MS", "NEVER_MS"}
    beside = [name for names in code_tables.LIMITS_BESIDE.values() for name in names]
    bounds = [name for name in vars(limits) if name.isupper() and name not in units]
    assert sorted(name for name, _, _ in rows) == sorted(bounds + beside)
    assert [name for name, _, meaning in rows if not meaning] == []


def test_each_bound_of_a_module_that_has_some_of_the_limits_is_among_them() -> None:
    shown = {name for names in code_tables.LIMITS_BESIDE.values() for name in names}
    for module in code_tables.BESIDE:
        own = set(re.findall(r"^([A-Z]\w*_MAX)\b.* =", inspect.getsource(module), re.MULTILINE))
        assert own, module.__name__
        assert own - shown == set(), module.__name__


def test_every_generated_part_is_shown_somewhere() -> None:
    shown = set(re.findall(r"<!-- generated: ([a-z-]+) -->", "".join(page.read_text() for page in documents())))
    assert shown == set(SECTIONS)


def test_the_tables_of_the_contract_have_what_the_thrift_parser_finds() -> None:
    path = ROOT / "idl/foqs.thrift"
    parsed = thriftpy2.load(str(path), module_name="documented_thrift")
    meta = parsed.__thrift_meta__
    found = {block.name: block for block in idl_tables.blocks(path)}
    for struct in [*meta["structs"], *meta["exceptions"]]:
        expected = [(str(number), spec[1]) for number, spec in sorted(struct.thrift_spec.items())]
        assert [(f.number, f.name) for f in found[struct.__name__].fields] == expected, struct.__name__
    for enum in meta["enums"]:
        expected = [(str(value), name) for value, name in sorted(enum._VALUES_TO_NAMES.items())]
        assert [(f.number, f.name) for f in found[enum.__name__].fields] == expected, enum.__name__
    assert len(found) == sum(len(meta[kind]) for kind in ("structs", "exceptions", "enums"))
    services = {name: [call for call, _, _ in calls] for name, calls in idl_tables.services(path)}
    assert services == {service.__name__: service.thrift_services for service in meta["services"]}


def test_every_log_event_is_described_and_none_that_is_not_logged() -> None:
    described = {
        code_tables.LogEvent(found["name"], found["level"])
        for found in _EVENT.finditer((ROOT / "docs/operations.md").read_text())
    }
    assert described == set(code_tables.log_events(ROOT / "foqs"))


def test_every_metric_that_a_document_speaks_of_exists() -> None:
    known = set(re.findall(r"^\| `(foqs_\w+)` \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    known |= {f"{name}_{part}" for name in known for part in ("bucket", "count", "sum") if name.endswith("_seconds")}
    text = "".join(page.read_text() for page in PAGES if page.name != "configuration.md")
    named = set(
        re.findall(r"\bfoqs_[a-z_]+_(?:total|seconds|bucket|count|items|bytes|rows|owned|healthy|leases)\b", text)
    )
    assert len(named) > 15
    assert named <= known


def _exists(words: str) -> bool:
    command: click.Command | None = cli
    context = click.Context(cli)
    for word in shlex.split(words):
        if command is None:
            return False
        if word.startswith("--"):
            options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
            if word not in options:
                return False
        elif isinstance(command, click.Group):
            command = command.get_command(context, word)
    return command is not None


def test_every_command_in_the_documents_exists() -> None:
    assert _exists("schema status")
    assert not _exists("schema status --sideways")
    assert not _exists("schemas status")
    shown = [(_name(page), found["words"].strip()) for page in PAGES for found in _COMMAND.finditer(page.read_text())]
    assert len(shown) > 15, "the pattern finds them"
    assert [f"{page}: foqs {words}" for page, words in shown if not _exists(words)] == []


def test_every_test_that_the_documents_name_exists() -> None:
    """A name that ends in dots is the beginning of one test's. A file without a folder is the only one of its name."""
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")]
    wrong, named_count = [], 0
    for page in PAGES:
        if page.name == "testing.md":  # Its files are a user's own.
            continue
        for found in _TEST.finditer(page.read_text()):
            paths = [path for path in files if path.endswith(f"/{found['file']}") or path == found["file"]]
            defined = re.findall(r"^(?:async )?def (test_\w+)\(", (ROOT / paths[0]).read_text(), re.M) if paths else []
            name, is_short = found["name"] or "", found["dots"] is not None
            fitting = [test for test in defined if test == name or (is_short and test.startswith(name))]
            named_count += bool(name)
            if len(paths) != 1 or (name and len(fitting) != 1):
                wrong.append(f"{_name(page)}: {found[0]}")
    assert wrong == []
    assert named_count > 100, "the pattern finds them"


def test_every_make_target_in_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {found["target"] for page in PAGES for found in _MAKE.finditer(page.read_text())}
    assert named
    assert named <= targets


def test_the_example_of_a_configuration_file_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOQS_CONFIG", raising=False)
    example = re.search(r"```toml\n(.*?)```", (ROOT / "docs/configuration.md").read_text(), re.DOTALL)
    assert example is not None
    file = tmp_path / "foqs.toml"
    file.write_text(example[1])
    assert set(load_config(path=file).config.shards) == {0, 1}


def test_decisions_have_numbers_of_their_own_and_their_parts() -> None:
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))
    assert len({int(path.name[:4]) for path in decisions}) == len(decisions)
    for path in decisions:
        text = path.read_text()
        assert text.startswith(f"# {path.name[:4]}: "), path.name
        assert [line for line in text.splitlines() if line.startswith("## ")] == [
            "## Context",
            "## Decision",
            "## Consequences",
        ], path.name
