// A link on another site comes without the cookie, which is for requests of this site alone. One that is made here has it.
(() => {
  const to = document.querySelector("input[name=to]")?.value;
  try {
    if (!to || to === "/" || sessionStorage.tried === to || document.querySelector("[role=alert]")) return;
    sessionStorage.tried = to;
    location.replace(to);
  } catch { /* without storage it could go round for ever */ }
})();
