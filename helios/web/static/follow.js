// A page that follows the queue: it is asked for again, and what has changed is changed in place, so that the focus,
// the scroll position, open details and what was typed stay. Without this script a page is as old as it is.
"use strict";

(() => {
  const EVERY_MS = 10e3, LONGEST_MS = 300e3, ANSWER_MS = 60e3;
  const ASK = {
    headers: { Accept: "text/html", "X-Helios-Follow": "1" },
    credentials: "same-origin", cache: "no-store", redirect: "error",
  };
  let updated = new Date(), wait = EVERY_MS, timer = 0;

  const clock = moment => `${moment.getHours()}:${String(moment.getMinutes()).padStart(2, "0")}`;

  // A row of a table is known by its first cell, other parts by their id or by their place.
  const key = node => node.id || (node.nodeName === "TR" && node.cells.length ? `row ${node.cells[0].textContent}` : "");

  const change = (old, anew) => {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== anew.data) old.data = anew.data;
      return;
    }
    if (old.matches("#updated, .drawing")) return; // their content is this script's, or the chart's
    for (const { name } of [...old.attributes])
      if (!anew.hasAttribute(name) && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
    for (const { name, value } of anew.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    const known = new Map([...old.childNodes].filter(key).map(node => [key(node), node]));
    let place = old.firstChild;
    for (const wanted of [...anew.childNodes]) {
      const same = key(wanted) ? known.get(key(wanted)) : place && !key(place) && place.nodeName === wanted.nodeName && place;
      if (!same) {
        old.insertBefore(document.importNode(wanted, true), place);
        continue;
      }
      known.delete(key(wanted));
      if (same === place) place = place.nextSibling;
      else old.insertBefore(same, place);
      change(same, wanted);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  };

  const show = text => {
    const main = document.querySelector("main");
    const anew = new DOMParser().parseFromString(text, "text/html").querySelector("main");
    if (!anew) throw new Error("no page");
    const focused = document.activeElement;
    const charts = () => [...main.querySelectorAll("figure.chart table")].map(table => table.textContent).join();
    const before = charts();
    change(main, anew);
    if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    if (charts() !== before) document.dispatchEvent(new Event("draw-charts"));
  };

  const say = (text, isOld) => {
    document.querySelector("#as-of")?.classList.toggle("old", isOld);
    const line = document.querySelector("#updated");
    if (line && line.textContent !== text) line.textContent = text; // by the minute: a screen reader reads each change
  };

  const ask = async () => {
    try {
      const answer = await fetch(location.href, { ...ASK, signal: AbortSignal.timeout(ANSWER_MS) });
      if (!answer.ok) throw new Error(answer.statusText);
      show(await answer.text());
      [updated, wait] = [new Date(), EVERY_MS];
      say(`Updated at ${clock(updated)}.`, false);
    } catch {
      wait = Math.min(2 * wait, LONGEST_MS);
      say(`Not updated since ${clock(updated)}.`, true);
    }
    plan(wait);
  };

  // Pages that were opened together do not ask together.
  const plan = delay => {
    clearTimeout(timer);
    timer = document.hidden ? 0 : setTimeout(ask, delay * (0.9 + 0.2 * Math.random()));
  };

  document.addEventListener("visibilitychange", () => plan(Math.max(0, updated.getTime() + wait - Date.now())));
  plan(wait);
})();
