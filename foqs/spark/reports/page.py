"""A report as one HTML page with its style inside. It needs no network, and follows the reader's light or dark mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from foqs.spark.reports.plots import Plot, svg_of

_STYLE = """
:root{color-scheme:light dark;--back:#fff;--card:#f6f7f9;--text:#1c2430;--soft:#5b6675;--line:#d9dee5;
--c0:#2f6fde;--c1:#e07b1f;--c2:#1f9d63;--c3:#c43d4b;--c4:#7c52c8;--c5:#0f93a5}
@media (prefers-color-scheme:dark){:root{--back:#12161c;--card:#1b2129;--text:#e4e9ef;--soft:#9aa6b4;--line:#323b47;
--c0:#6ea3ff;--c1:#f4a259;--c2:#57c893;--c3:#f27d88;--c4:#b596f0;--c5:#4cc7d6}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1000px;padding:28px 20px 60px;background:var(--back);
color:var(--text);font:15px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 8px}p{margin:6px 0 12px}small,.soft{color:var(--soft)}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.card{background:var(--card);border-radius:10px;padding:12px 14px}.card b{display:block;font-size:22px;font-weight:600}
figure{margin:18px 0;background:var(--card);border-radius:10px;padding:14px}figcaption{font-weight:600}
svg{width:100%;height:auto;display:block}svg text{fill:var(--soft);font-size:11px}.grid{stroke:var(--line)}
svg path{fill:none;stroke:currentColor;stroke-width:2}svg circle,svg rect{fill:currentColor}
.keys{display:flex;flex-wrap:wrap;gap:4px 16px;margin:4px 0 8px;font-size:13px}
.key i{display:inline-block;width:10px;height:10px;border-radius:3px;background:currentColor;margin-right:6px}
.c0{color:var(--c0)}.c1{color:var(--c1)}.c2{color:var(--c2)}.c3{color:var(--c3)}.c4{color:var(--c4)}.c5{color:var(--c5)}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13.5px;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th{color:var(--soft);font-weight:600}th.t,td.t{text-align:left;white-space:normal;overflow-wrap:anywhere}
@media print{body{max-width:none}figure{break-inside:avoid}}
"""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts; `texts` are the numbers of the columns that are words and not numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: Sequence[int] = (0,)


@dataclass(slots=True)
class Section:
    """A heading, followed by its text, plots and tables."""

    title: str
    text: str = ""
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(slots=True)
class Page:
    """A whole report. All of its texts are plain, and are escaped here."""

    title: str
    subtitle: str
    cards: list[tuple[str, str]]
    """A number and its name."""
    sections: list[Section]


def html_of(page: Page) -> str:
    """The page as one file."""
    cards = "".join(f'<div class="card"><b>{escape(value)}</b>{escape(name)}</div>' for value, name in page.cards)
    body = "".join(_section(section) for section in page.sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(page.title)}</title><style>{_STYLE}</style></head><body><h1>{escape(page.title)}</h1>"
        f'<p class="soft">{escape(page.subtitle)}</p><div class="cards">{cards}</div>{body}</body></html>\n'
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    plots = "".join(svg_of(plot) for plot in section.plots)
    return f"<h2>{escape(section.title)}</h2>{text}{plots}{''.join(_table(table) for table in section.tables)}"


def _table(table: Table) -> str:
    if not table.rows:
        return '<p class="soft">Nothing in this time.</p>'
    head = "".join(f"<th{_kind(table, at)}>{escape(name)}</th>" for at, name in enumerate(table.head))
    rows = "".join(
        f"<tr>{''.join(f'<td{_kind(table, at)}>{escape(value)}</td>' for at, value in enumerate(row))}</tr>"
        for row in table.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _kind(table: Table, at: int) -> str:
    return ' class="t"' if at in table.texts else ""
