// Keeps the page up to date. Without it, the page works and is loaded again every ten seconds.
"use strict";
(() => {
  const seconds = Number(document.body.dataset.refresh);
  const button = document.getElementById("pause");
  const state = document.getElementById("state");
  const TYPING_MILLISECONDS = 250;
  let paused = false;

  function replaceParts(fresh) {
    const parts = (root) => Array.from(root.querySelectorAll("main [data-part]"));
    const [before, after] = [parts(document), parts(fresh)];
    const name = (part) => part.dataset.part;
    if (before.map(name).join("\n") !== after.map(name).join("\n")) {
      replace(document.querySelector("main"), fresh.querySelector("main"));
      return;
    }
    before.forEach((part, at) => {
      if (part.dataset.source !== after[at].innerHTML) {
        replace(part, after[at]);
      }
    });
  }

  // Details that the reader has opened stay open, chosen jobs stay chosen, a log stays at its end or where it was, and the focus stays where it was.
  function replace(old, fresh) {
    const source = fresh.innerHTML;
    const open = new Set(Array.from(old.querySelectorAll("details[open]"), (each) => each.dataset.fold));
    const picked = new Set(Array.from(old.querySelectorAll("[name=job]:checked"), (each) => each.value));
    const scrolled = Array.from(old.querySelectorAll("pre"), (each) => [each.scrollTop, each.scrollTop + each.clientHeight >= each.scrollHeight - 4]);
    const reachable = "a, button, input, summary, [tabindex]";
    const focused = Array.from(old.querySelectorAll(reachable)).indexOf(document.activeElement);
    old.innerHTML = source;
    old.querySelectorAll("details").forEach((each) => { each.open = open.has(each.dataset.fold); });
    old.querySelectorAll("[name=job]").forEach((each) => { each.checked = picked.has(each.value); });
    old.querySelectorAll("pre").forEach((each, at) => {
      if (scrolled[at]) { each.scrollTop = scrolled[at][1] ? each.scrollHeight : scrolled[at][0]; }
    });
    window.drawPlots();
    if (focused >= 0) { old.querySelectorAll(reachable)[focused]?.focus({ preventScroll: true }); }
    if (old.dataset.part) { old.dataset.source = source; }
  }

  async function refresh(asked = false) {
    if ((paused && !asked) || document.hidden) { return; }
    const address = location.href;
    try {
      const answer = await fetch(address, { redirect: "error", cache: "no-store" });
      const text = await answer.text();
      if (answer.status === 401) { location.reload(); return; }
      if (!answer.ok) { throw new Error(String(answer.status)); }
      if ((paused && !asked) || address !== location.href) { return; }
      replaceParts(new DOMParser().parseFromString(text, "text/html"));
      state.textContent = "";
    } catch {
      state.textContent = "The server does not answer. The page is older than it seems.";
    }
  }

  async function loop() {
    for (;;) {
      await new Promise((wake) => setTimeout(wake, seconds * 1000));
      await refresh();
    }
  }

  document.querySelectorAll("pre.log").forEach((each) => { each.scrollTop = each.scrollHeight; });

  // The list and the log follow what the reader types.
  const filter = document.getElementById("filter");
  let typing = 0;
  filter?.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      const chosen = Array.from(new FormData(filter)).filter(([, value]) => value);
      history.replaceState(null, "", `?${new URLSearchParams(chosen)}`);
      refresh(true);
    }, TYPING_MILLISECONDS);
  });

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    state.textContent = paused ? "Updates are paused." : "";
    if (!paused) { refresh(); }
  });
  document.querySelectorAll("main [data-part]").forEach((part) => { part.dataset.source = part.innerHTML; });
  document.addEventListener("visibilitychange", () => refresh());
  loop();
})();
