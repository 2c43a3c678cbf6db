// The theme, before anything is drawn: that of the browser's last choice here, or of the system.
(() => {
  let kept = null;
  try { kept = localStorage.theme } catch { /* storage can be forbidden */ }
  const wished = new URLSearchParams(location.search).get("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = ["light", "dark"].find(one => one === wished) || kept || dark;
})();
