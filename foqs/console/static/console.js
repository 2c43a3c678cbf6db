// What all pages share: live parts, theme, keys, copy buttons, charts and dialogs. The server renders everything else.
"use strict";
const $ = (selector, at = document) => at.querySelector(selector), $$ = (selector, at = document) => [...at.querySelectorAll(selector)];
const LIVE_MS = 5000;

// ---- live: no swap while text is selected, a field has unsent text, a dialog is open, or the tab is hidden
const hasUnsent = () => { const field = document.activeElement; return field?.matches("main input, main select") && field.value !== (field.getAttribute("value") ?? field.value) };
const isLive = () => !document.hidden && !$("dialog[open]") && !hasUnsent() && (getSelection()?.isCollapsed ?? true);
const say = text => { const badge = $("#live span"); if (badge) badge.textContent = text };
const refresh = () => { const part = $("#live-part"); if (part && isLive()) htmx.trigger(part, "refresh"); say(isLive() ? "Live 5 s" : "Paused") };
setInterval(refresh, LIVE_MS);
document.addEventListener("selectionchange", () => say(isLive() ? "Live 5 s" : "Paused"));

// A swap keeps the selected row, and draws the charts anew.
let selected = "";
document.addEventListener("htmx:before:swap", event => {
  const status = event.detail.ctx?.response?.raw?.status ?? event.detail.ctx?.response?.status;
  if (status >= 500) { event.preventDefault(); say("No answer") }
  selected = $("tr[aria-selected=true]")?.id ?? "";
});
document.addEventListener("htmx:error", () => say("No answer"));
document.addEventListener("htmx:after:swap", () => {
  const row = selected && document.getElementById(selected);
  if (row) row.setAttribute("aria-selected", "true");
  drawCharts();
  const dialog = $("#dialog");
  if (dialog && dialog.childElementCount && !dialog.open && dialog.dataset.wanted) { dialog.showModal(); focusFirst(dialog) }
});

// ---- theme
$("#theme")?.addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.theme = theme } catch { /* storage can be forbidden */ }
  drawCharts(true);
});

// ---- charts
const drawn = new Map();
function drawCharts(isAnew = false) {
  const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  for (const data of $$("[data-chart]")) {
    const place = document.getElementById(data.dataset.for);
    if (!place || !place.clientWidth) continue;
    const key = `${data.dataset.chart}/${place.clientWidth}`;
    if (!isAnew && drawn.get(place)?.key === key) continue;
    drawn.get(place)?.plot.destroy();
    const { times, lines } = JSON.parse(data.dataset.chart);
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px Inter, system-ui, sans-serif" };
    const plot = new uPlot({
      width: place.clientWidth, height: 150, padding: [6, 6, 0, 0], cursor: { y: false, points: { size: 6 }, sync: { key: "console" } },
      scales: { y: { range: (_, low, high) => [0, (high ?? 0) * 1.08 || 1] } },
      series: [{}, ...lines.map(line => ({ stroke: css(line.color), width: 1.6, fill: line.fill ? css(line.color) + "22" : undefined, points: { show: false } }))],
      axes: [
        { ...axis, values: (_, values) => values.map(s => new Date(s * 1000).toISOString().slice(11, 16)), space: 70, size: 24, gap: 4 },
        { ...axis, size: 46, values: (_, values) => values.map(x => x >= 1e6 ? `${+(x / 1e6).toFixed(1)} M` : x >= 1000 ? `${+(x / 1000).toFixed(1)} k` : x) },
      ],
    }, [times, ...lines.map(line => line.values)], place);
    drawn.set(place, { key, plot });
  }
  for (const place of drawn.keys()) if (!place.isConnected) drawn.delete(place);
}
addEventListener("resize", () => drawCharts());
addEventListener("DOMContentLoaded", () => drawCharts());

// ---- dialogs: the page of an action, shown over the page that it is about
const focusFirst = dialog => ($("input:not([type=hidden]), select", dialog) ?? $("button, a", dialog))?.focus();
function openDialog(url) {
  const dialog = $("#dialog");
  dialog.dataset.wanted = "yes";
  htmx.ajax("GET", url, { target: "#dialog", swap: "innerHTML" });
}
$("#dialog")?.addEventListener("close", event => { delete event.target.dataset.wanted; event.target.replaceChildren(); refresh() });
document.addEventListener("click", event => {
  const opener = event.target.closest("a[data-dialog]");
  if (opener && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); openDialog(opener.href) }
  if (event.target.closest("dialog [data-close]")) { event.preventDefault(); event.target.closest("dialog").close() }
  const copy = event.target.closest("[data-copy]");
  if (copy) { navigator.clipboard?.writeText(copy.dataset.copy); copy.firstChild.data = "Copied"; setTimeout(() => { copy.firstChild.data = "Copy" }, 1200) }
  const row = event.target.closest("tr[data-href]");
  if (row && !event.target.closest("a, button") && getSelection().isCollapsed) location.href = row.dataset.href;
});

// ---- keys and the selection of the namespace
$("#keys")?.addEventListener("click", () => $("#keys-help").showModal());
$("#namespaces")?.addEventListener("change", event => { location.href = event.target.value });
const pageOf = name => $$(".side nav a").find(link => link.firstChild.textContent === name)?.href;
let last = "";
function move(step) {
  const rows = $$("tbody tr[aria-selected]");
  if (!rows.length) return;
  const at = rows.findIndex(row => row.getAttribute("aria-selected") === "true");
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
  rows.forEach(row => row.setAttribute("aria-selected", String(row === next)));
  next.scrollIntoView({ block: "nearest" });
}
const AFTER_G = { o: () => pageOf("Overview"), t: () => pageOf("Topics"), d: () => pageOf("Topics") && `${pageOf("Topics")}?show=dead&sort=-dead`, c: () => pageOf("Cluster"), j: () => pageOf("Jobs") };
const ALONE = {
  "/": () => $("#find")?.focus(), f: () => $("#filter")?.focus(), a: () => $("#act")?.click(), t: () => $("#theme")?.click(),
  "?": () => $("#keys-help").showModal(), j: () => move(1), k: () => move(-1),
};
addEventListener("keydown", event => {
  if (event.target.matches("input, select, textarea") || event.metaKey || event.ctrlKey || event.altKey || $("dialog[open]")) return;
  const before = last;
  last = event.key;
  if (event.key === "Enter") {
    const row = $("tbody tr[aria-selected=true][data-href]");
    if (row && !event.target.closest("a, button, summary")) location.href = row.dataset.href;
  } else if (before === "g") {
    const url = AFTER_G[event.key]?.();
    last = "";
    if (url) location.href = url;
  } else if (ALONE[event.key]) { event.preventDefault(); ALONE[event.key]() }
});

// ---- the command line of a dialog follows its fields
const quoted = text => /^[A-Za-z0-9_@%+=:,.\/-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
function showCommand(form) {
  const put = (box, text) => { $("code", box).textContent = text; $("[data-copy]", box).dataset.copy = text };
  const base = $("[data-command]", form);
  if (base) {
    const words = $$("[data-flag]", form).map(field => !field.value || !field.dataset.flag || (field.dataset.flag === "--items-per-second-max" && field.value === "0") ? ""
      : field.dataset.flag === "@" ? ` ${quoted(field.value)}` : ` ${field.dataset.flag} ${quoted(field.value)}`);
    const [head, ...names] = base.dataset.command.split(" -- ");
    put(base, head + words.join("") + (names.length ? ` -- ${names.join(" -- ")}` : ""));
  }
  for (const line of $$("[data-line]", form)) { const field = form.elements[line.dataset.line]; put(line, `${field.dataset.flag} ${quoted(field.value || "0")}`) }
}
document.addEventListener("input", event => { const form = event.target.closest("form.action"); if (form) showCommand(form) });
document.addEventListener("htmx:after:swap", () => $$("form.action").forEach(showCommand));
$$("form.action").forEach(showCommand);
