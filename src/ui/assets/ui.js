"use strict";
// Replaces the part of the page that changes by that of a newer page, every two seconds while somebody sees it. Nothing else on the
// page needs a script.
(() => {
  const EVERY = 2000;
  const live = document.getElementById("live");
  const stale = document.getElementById("stale");
  if (!live || !stale) return;

  // A text that somebody has selected must not vanish before it is copied.
  function isSelected() {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && live.contains(selection.anchorNode);
  }

  function show(page) {
    const next = new DOMParser().parseFromString(page, "text/html").getElementById("live");
    if (!next) throw new Error("the answer is another page");
    const focused = live.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    live.replaceChildren(...next.childNodes);
    if (focused !== null) live.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  async function refresh() {
    if (document.hidden || isSelected()) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(15000) });
      // The session has ended.
      if (answer.redirected) return location.reload();
      show(await answer.text());
      stale.hidden = true;
    } catch {
      stale.hidden = false;
    }
  }

  async function loop() {
    await refresh();
    setTimeout(loop, EVERY);
  }

  setTimeout(loop, EVERY);
  document.addEventListener("visibilitychange", refresh);
})();
