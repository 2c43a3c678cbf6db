// What all pages share: live parts, theme, keys, copy buttons, charts and the dialog. The server renders everything else.
"use strict";
const $ = (selector, at = document) => at.querySelector(selector), $$ = (selector, at = document) => [...at.querySelectorAll(selector)];
const LIVE_MS = 5000;

// ---- live: no swap while text is selected, a dialog is open, or the tab is hidden
const isLive = () => !document.hidden && !$("dialog[open]") && (getSelection()?.isCollapsed ?? true);
setInterval(() => {
  const badge = $("#live span"), part = $("#live-part");
  if (!part) return;
  if (badge) badge.textContent = isLive() ? "Live 5 s" : "Paused";
  if (isLive()) part.dispatchEvent(new Event("refresh"));
}, LIVE_MS);
