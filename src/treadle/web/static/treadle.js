// What pages do beyond links and forms: live updates, dialogs, shortcuts, copying, zone and theme.
"use strict";
(() => {
  const html = document.documentElement;
  const root = html.dataset.root;
  const $ = (selector, within = document) => within.querySelector(selector);
  const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
  const main = () => $("#main");
  const isLive = (element) => "live" in element.dataset; // whether the page is refreshed when something has changed
  const dialog = $("#dialog");
  const keep = {
    get: (name) => { try { return localStorage.getItem(`treadle.${name}`); } catch { return null; } },
    set: (name, value) => { try { localStorage.setItem(`treadle.${name}`, value); } catch { /* private mode */ } },
  };
  const cookie = (name, value) => { document.cookie = `treadle_${name}=${value}; path=${root}; max-age=${value ? 31536000 : 0}; samesite=lax`; };

  // Relative times are updated while the page is open, in the format of units.format_duration in Python.
  const span = (seconds) => {
    if (seconds < 0.9995) return `${Math.max(0, Math.round(seconds * 1000))}ms`;
    if (seconds < 9.95) return `${seconds.toFixed(1)}s`;
    const whole = Math.round(seconds);
    for (const [unit, next, size, small] of [["d", "h", 86400, 3600], ["h", "m", 3600, 60], ["m", "s", 60, 1]]) {
      if (whole < size) continue;
      const rest = Math.floor((whole % size) / small);
      return `${Math.floor(whole / size)}${unit}` + (rest ? ` ${rest}${next}` : "");
    }
    return `${whole}s`;
  };
  const tick = () => {
    for (const time of $$("time[data-ago], time[data-for]")) {
      const seconds = (Date.parse(time.dateTime) - Date.now()) / 1000;
      const text = "for" in time.dataset ? span(-seconds) : Math.abs(seconds) < 0.5 ? "now" : seconds > 0 ? `in ${span(seconds)}` : `${span(-seconds)} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
  };

  // Morph: make `have` look like `want`, keeping the nodes, and with them focus, scrolling, ticks and open details.
  const key = (node) => (node.getAttribute && node.getAttribute("id")) || ""; // a form's .id may be a field of that name
  const same = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && key(a) === key(b);
  const morph = (have, want) => {
    if (have.nodeType !== Node.ELEMENT_NODE) {
      if (have.nodeValue !== want.nodeValue) have.nodeValue = want.nodeValue;
      return;
    }
    const own = (name) => (name === "open" && have.nodeName === "DETAILS") || (name === "hidden" && "js" in have.dataset);
    for (const { name } of [...have.attributes]) if (!want.hasAttribute(name) && !own(name)) have.removeAttribute(name);
    for (const { name, value } of want.attributes) if (!own(name) && have.getAttribute(name) !== value) have.setAttribute(name, value);
    const wanted = new Set([...want.children].map(key));
    for (const child of [...have.children]) if (key(child) && !wanted.has(key(child))) child.remove();
    const keyed = new Map([...have.children].filter(key).map((child) => [key(child), child]));
    let at = have.firstChild;
    for (const next of [...want.childNodes]) {
      let found = key(next) ? keyed.get(key(next)) : at && same(at, next) ? at : null;
      if (found && !same(found, next)) found = null;
      if (!found) { have.insertBefore(document.importNode(next, true), at); continue; }
      if (found === at) at = at.nextSibling; else have.insertBefore(found, at);
      morph(found, next);
    }
    while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
  };

  // Live: a hint says that something has changed. The page is then fetched again and morphed.
  const badge = $("#live");
  let source = null, busy = false, again = false, missed = 0, last = Date.now(), connected = null, timer = 0;
  const paused = () => keep.get("live") === "off";
  const typing = (element) => element && /^(INPUT|TEXTAREA|SELECT)$/.test(element.nodeName) && element.type !== "checkbox";
  const held = () => dialog.open || typing(document.activeElement) || $("#main input[name=id]:checked, #all-matching:checked");
  const kept = () => paused() || held(); // the page stays as it is
  const show = () => {
    if (!isLive(main())) return;
    const state = connected === null ? "off" : !connected ? "reconnecting" : paused() || (held() && missed) ? "paused" : "live";
    badge.hidden = false;
    badge.dataset.state = state;
    const word = { off: "Live", live: "Live", paused: "Paused", reconnecting: "Reconnecting" }[state];
    $("span", badge).textContent = state === "paused" && missed ? `${word} · ${missed} update${missed > 1 ? "s" : ""}` : word;
    badge.setAttribute("aria-label", `${word}: live updates`);
  };
  const refresh = async () => {
    if (busy) { again = true; return; }
    busy = true; last = Date.now();
    try {
      const response = await fetch(location.href, { headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = $("#main", page);
      connected = true;
      if (kept()) missed += 1; // the reader began to use the page while it loaded
      else if (response.ok && fresh && isLive(fresh)) { missed = 0; morph(main(), fresh); morph($("#foot"), $("#foot", page)); document.title = page.title; settle(); }
    } catch { connected = false; }
    busy = false; show();
    if (again) { again = false; hint(); }
  };
  const hint = () => {
    if (kept()) { missed += 1; show(); return; }
    clearTimeout(timer);
    timer = setTimeout(() => (kept() ? (missed += 1, show()) : refresh()), Math.max(0, last + 750 - Date.now()));
  };
  const connect = () => {
    if (source || document.hidden || !isLive(main())) return;
    source = new EventSource(`${root}api/events`);
    source.onopen = () => { connected = true; show(); };
    source.addEventListener("changed", hint); // the first comes at once, for changes since the page was made
    source.onerror = () => {
      connected = false; show();
      if (source && source.readyState === EventSource.CLOSED) { // refused: poll instead
        source = null;
        setTimeout(() => { if (!kept()) refresh(); connect(); }, 5000);
      }
    };
  };
  const disconnect = () => { if (source) source.close(); source = null; };
  const catchUp = () => { if (missed && !kept()) refresh(); else show(); };
  const released = () => setTimeout(catchUp, 50);
  const toggle = () => { keep.set("live", paused() ? "on" : "off"); catchUp(); };

  // Rows: the selected ones, and the one that the keys act on.
  const rows = () => $$("#main tr[data-href]");
  let cursor = "";
  const row = () => document.getElementById(cursor);
  const settle = () => {
    for (const element of $$("[data-js]")) element.hidden = false;
    for (const one of rows()) one.classList.toggle("cursor", one.id === cursor);
    selection();
  };
  const selection = () => {
    const boxes = $$("#main input[name=id]"), chosen = boxes.filter((box) => box.checked).length;
    const all = $("#all-matching"), count = $("#selected");
    if (!count) return;
    count.textContent = chosen ? `${chosen} selected` : "Select";
    $("#all").checked = boxes.length > 0 && chosen === boxes.length;
    $("#all").indeterminate = chosen > 0 && chosen < boxes.length;
    for (const button of $$("[data-needs-rows]")) button.disabled = !chosen && !(all && all.checked);
  };
  const step = (by) => {
    const list = rows(), at = list.findIndex((one) => one.id === cursor);
    const next = list[Math.min(list.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
    if (!next) return;
    cursor = next.id;
    settle();
    next.scrollIntoView({ block: "nearest" });
  };
  const mark = () => { const box = row() && $("input[name=id]", row()); if (box) { box.checked = !box.checked; selection(); released(); } };

  // Dialogs: a confirmation page, shown over this one.
  let opener = null, asking = false;
  const ask = async (url) => {
    if (asking) return;
    asking = true; opener = document.activeElement;
    dialog.replaceChildren();
    try {
      const response = await fetch(url, { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(10000) });
      const form = $("#confirm", new DOMParser().parseFromString(await response.text(), "text/html"));
      if (!form) { location.href = url; return; }
      form.classList.remove("panel");
      dialog.replaceChildren(document.importNode(form, true));
      dialog.showModal();
      ($("[autofocus]", dialog) || dialog).focus();
      show();
    } catch { location.href = url; } finally { asking = false; }
  };
  const help = () => { opener = document.activeElement; dialog.replaceChildren($("#help").content.cloneNode(true)); dialog.showModal(); };
  dialog.addEventListener("close", () => { if (opener && opener.isConnected) opener.focus(); released(); });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

  const toast = (text) => {
    const line = document.createElement("p");
    line.textContent = text;
    $("#toasts").append(line);
    setTimeout(() => line.remove(), 2500);
  };
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); } catch { // not a secure context
      const area = document.createElement("textarea");
      area.value = text; document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
    }
    toast("Copied");
  };
  const theme = () => {
    const now = html.dataset.theme || "", next = { "": "light", light: "dark", dark: "" }[now];
    if (next) html.dataset.theme = next; else delete html.dataset.theme;
    cookie("theme", next);
    toast(`Theme: ${next || "system"}`);
  };
  const here = () => { try { return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC"; } catch { return "UTC"; } };
  const zone = () => { // the first visit, or the browser has changed its zone
    $("[data-browser]").textContent = `Browser (${here()})`;
    const mine = `treadle_zone=browser:${here()}`;
    if (html.dataset.zone && html.dataset.zone !== "browser") return;
    $("#zone").value = "browser";
    if (document.cookie.split("; ").includes(mine)) return;
    cookie("zone", `browser:${here()}`);
    if (here() !== "UTC") refresh();
  };

  // Suggestions for the last word of the filter. An option has the whole text, so that choosing it keeps the other words.
  let terms = null;
  const suggest = async (box) => {
    if (!terms) {
      terms = [];
      try { terms = (await (await fetch(`${root}api/filter-terms`)).json()).items || []; } catch { terms = null; return; }
    }
    const [, before, word] = /^(.*\s)?(\S*)$/s.exec(box.value), begun = word.toLowerCase();
    const found = terms.filter((term) => term.toLowerCase().startsWith(begun) && term !== word).slice(0, 20);
    box.list.replaceChildren(...found.map((term) => { const one = document.createElement("option"); one.value = (before || "") + term; return one; }));
  };
  for (const name of ["focusin", "input"]) document.addEventListener(name, (event) => { if (event.target.id === "filter") suggest(event.target); });

  document.addEventListener("click", (event) => {
    const on = (selector) => event.target.closest(selector);
    let found;
    if ((found = on("[data-copy]"))) copy(found.dataset.copy);
    else if ((found = on("a[data-dialog]")) && !event.metaKey && !event.ctrlKey) { event.preventDefault(); ask(found.href); }
    else if ((found = on("[data-close]")) && dialog.open) { event.preventDefault(); dialog.close(); }
    else if (on("#live")) toggle();
    else if (on("#theme")) theme();
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-dialog]")) return;
    event.preventDefault();
    ask(`${form.getAttribute("action")}?${new URLSearchParams(new FormData(form, event.submitter))}`);
  });
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "all") for (const one of $$("#main input[name=id]")) one.checked = box.checked;
    if (box.id === "zone") { cookie("zone", box.value === "browser" ? `browser:${here()}` : box.value); location.reload(); }
    if (box.id === "keys") keep.set("keys", box.checked ? "on" : "off");
    if ("submit" in box.dataset) box.form.requestSubmit();
    selection(); released();
  });
  document.addEventListener("focusout", released);
  document.addEventListener("visibilitychange", () => { if (document.hidden) disconnect(); else connect(); });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });

  // Shortcuts. Those that change jobs are upper-case and ask first.
  let going = 0;
  const act = (key, name) => {
    const button = $(`[data-key="${key}"]`);
    if (button) { ask(button.href); return; }
    const box = row() && $("input[name=id]", row());
    if (box && !$("#main input[name=id]:checked, #all-matching:checked")) { box.checked = true; selection(); }
    const bulk = $(`[data-testid=bulk-${name}]`);
    if (bulk && !bulk.disabled) bulk.form.requestSubmit(bulk);
  };
  const KEYS = {
    "/": () => { const box = $("#filter"); if (box) { box.focus(); box.select(); } else location.href = `${root}jobs`; },
    j: () => step(1), k: () => step(-1), x: mark, r: toggle, t: theme, "?": help, g: () => { going = Date.now(); },
    Enter: () => { if (row()) location.href = row().dataset.href; },
    R: () => act("R", "retry"), S: () => act("S", "reschedule"), C: () => act("C", "cancel"), D: () => act("D", "delete"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && typing(event.target)) event.target.blur();
    if (event.ctrlKey || event.metaKey || event.altKey || asking || dialog.open || typing(event.target) || keep.get("keys") === "off") return;
    const link = Date.now() - going < 1000 && $(`[data-go="${event.key}"]`);
    going = 0;
    if (link) { location.href = link.href; return; }
    if (event.key === "Enter" && event.target.closest("a, button, summary, input")) return;
    if (!KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key]();
  });

  $("#theme").hidden = false;
  if ($("#keys")) $("#keys").checked = keep.get("keys") !== "off";
  settle(); tick(); zone(); connect(); show();
  setInterval(() => { if (!document.hidden) tick(); }, 1000);
  // Progress and logs of a running job: not every database tells of them.
  setInterval(() => { if (!document.hidden && connected && !kept() && $("[data-follow]")) hint(); }, 2000);
})();
