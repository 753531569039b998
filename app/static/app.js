"use strict";
/* The script of the frame: secret on every change, address, keys, times, toasts, and small tools for the widgets.
   Everything hangs on `rl2f`. Text reaches the page through textContent alone. */
(() => {
  const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
  const secret = meta("rl2f-secret");
  const HEADER = "X-RL2F-Secret";
  const SAFE = new Set(["GET", "HEAD", "OPTIONS"]);

  /* ---- The secret: Gradio's own requests change things too, so it is put on at the bottom ---- */
  const sameOrigin = (url) => new URL(url, location.href).origin === location.origin;
  const plainFetch = window.fetch.bind(window);
  window.fetch = (input, init = {}) => {
    const request = input instanceof Request;
    const method = (init.method ?? (request ? input.method : "GET")).toUpperCase();
    if (SAFE.has(method) || !sameOrigin(request ? input.url : input)) return plainFetch(input, init);
    const headers = new Headers(init.headers ?? (request ? input.headers : undefined));
    headers.set(HEADER, secret);
    return plainFetch(input, { ...init, headers });
  };
  const { open, send } = XMLHttpRequest.prototype;
  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.rl2fGuarded = !SAFE.has(String(method).toUpperCase()) && sameOrigin(url);
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (body) {
    if (this.rl2fGuarded) this.setRequestHeader(HEADER, secret);
    return send.call(this, body);
  };

  /* ---- DOM ---- */
  const SVG = "http://www.w3.org/2000/svg";
  /** el("a", {href, class, onclick, dataset: {…}, style: {…}}, "text", node, [nodes], null): strings become text nodes. */
  function el(tag, props = {}, ...children) {
    const svg = tag.startsWith("svg:");
    const node = svg ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(props ?? {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "class") node.setAttribute("class", value);
      else if (name === "dataset") Object.assign(node.dataset, value);
      else if (name === "style") for (const [k, v] of Object.entries(value)) k.startsWith("--") ? node.style.setProperty(k, v) : (node.style[k] = v);
      else if (name.startsWith("on") && typeof value === "function") node.addEventListener(name.slice(2), value);
      else if (name === "text") node.textContent = value;
      else if (["value", "checked", "disabled", "open", "selected", "indeterminate", "hidden"].includes(name) && !svg) node[name] = value;
      else if (["href", "src", "action"].includes(name) && /^\s*(javascript|data|vbscript):/i.test(String(value))) continue;
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
    return node;
  }
  /** Replace what a node holds. */
  function fill(node, ...children) {
    node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
    return node;
  }

  /* ---- Address ---- */
  const query = () => Object.fromEntries(new URLSearchParams(location.search));
  /** Change some values of the address; null or "" removes one. `push` makes a step that Back undoes. */
  function setQuery(changes, { push = false } = {}) {
    const params = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") params.delete(name);
      else params.set(name, Array.isArray(value) ? value.join(",") : String(value));
    }
    const text = params.toString().replaceAll("%2C", ",").replaceAll("%40", "@").replaceAll("%3A", ":").replaceAll("%2F", "/");
    const url = location.pathname + (text ? `?${text}` : "") + location.hash;
    if (url !== location.pathname + location.search + location.hash) history[push ? "pushState" : "replaceState"](history.state, "", url);
  }
  function pageUrl(path, values = {}) {
    const params = new URLSearchParams();
    for (const [name, value] of Object.entries(values)) {
      if (value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length)) continue;
      params.set(name, Array.isArray(value) ? value.join(",") : String(value));
    }
    const text = params.toString().replaceAll("%2C", ",").replaceAll("%40", "@").replaceAll("%3A", ":").replaceAll("%2F", "/");
    return `/${path}${text ? `?${text}` : ""}`;
  }
  const links = {
    runs: (more) => pageUrl("", more),
    run: (id, more) => pageUrl("run", { run: id, ...more }),
    dialogue: (run, event, turn = null, step = null, more = {}) => pageUrl("dialogues", { run, step, ...more, dialogue: event, turn }),
    dialogues: (more) => pageUrl("dialogues", more),
    fork: (run, event, turn = 0, more = {}) => pageUrl("fork", { run, dialogue: event, turn, ...more }),
    labels: (more) => pageUrl("labels", more),
    fresh: (preset = null, clone = null, more = {}) => pageUrl("new", { preset, clone, ...more }),
    compare: (ids, more) => pageUrl("compare", { runs: ids, ...more }),
    chat: (chat = null, checkpoints = [], more = {}) => pageUrl("chat", { chat, checkpoints, ...more }),
  };

  /* ---- Server ---- */
  class Failure extends Error {
    constructor(status, { what, value = null, known = null, fix = null }) {
      super(what);
      Object.assign(this, { status, what, value, known, fix });
    }
  }
  /** JSON from the server. `body` is sent as JSON (POST unless `method` says else). Failures are shown unless `quiet`. */
  async function api(path, { method, body, quiet = false, signal } = {}) {
    try {
      const sent = body !== undefined;
      let answer;
      try {
        answer = await fetch(path, {
          method: method ?? (sent ? "POST" : "GET"), signal,
          headers: sent ? { "Content-Type": "application/json" } : {}, body: sent ? JSON.stringify(body) : undefined,
        });
      } catch (error) {
        if (error.name === "AbortError") throw error;
        offline(true);
        throw new Failure(0, { what: "The server does not answer.", fix: "Runs go on without it. Start it again with: rl2f serve" });
      }
      offline(false);
      const text = await answer.text();
      let data = null;
      try { data = text ? JSON.parse(text) : null; } catch { data = null; }
      if (!answer.ok) {
        const known = data?.error && typeof data.error === "object" ? data.error : { what: data?.detail ?? `The server answered ${answer.status}.` };
        throw new Failure(answer.status, known);
      }
      return data;
    } catch (error) {
      if (!quiet && error instanceof Failure && error.status !== 0) toast(error);
      throw error;
    }
  }
  let awayBanner = null;
  function offline(away) {
    if (away && !awayBanner) {
      awayBanner = el("div", { class: "rl-banner rl-offline", role: "status" }, "The server does not answer. Runs go on without it; this page goes on when it is back.");
      document.querySelector(".rl-top")?.after(awayBanner);
    } else if (!away && awayBanner) { awayBanner.remove(); awayBanner = null; }
  }
  /** Call `fn` now and then every `ms` while the tab is seen; one call at a time. Returns {now, stop}. */
  function poll(fn, ms) {
    let timer = null, busy = false, ended = false, again = false;
    const tick = async () => {
      clearTimeout(timer);
      if (ended) return;
      if (busy) { again = true; return; }
      if (!document.hidden) {
        busy = true;
        try { await fn(); } catch (error) { if (!(error instanceof Failure) && error.name !== "AbortError") console.error(error); }
        busy = false;
      }
      if (again) { again = false; return tick(); }
      timer = setTimeout(tick, ms);
    };
    document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
    tick();
    return { now: tick, stop: () => { ended = true; clearTimeout(timer); } };
  }

  /* ---- Toasts and questions ---- */
  function toast(message, { kind = null, action = null, ms = 6000 } = {}) {
    const failed = message instanceof Error;
    const what = failed ? message.what ?? message.message : String(message);
    const hint = failed ? [message.value === null || message.value === undefined ? "" : `Got: ${message.value}`, message.known ? `Known: ${message.known.join(", ")}` : "", message.fix ?? ""].filter(Boolean).join(" · ") : "";
    let box = document.querySelector(".rl-toasts");
    if (!box) document.body.append((box = el("div", { class: "rl-toasts", role: "status", "aria-live": "polite" })));
    const node = el("div", { class: "rl-toast", dataset: { kind: kind ?? (failed ? "error" : "info") } },
      el("p", {}, what, hint ? el("small", {}, hint) : null),
      action ? el("button", { type: "button", class: "rl-button rl-small", onclick: () => { node.remove(); action.run(); } }, action.label) : null,
      el("button", { type: "button", class: "rl-icon", "aria-label": "Close", onclick: () => node.remove() }, "×"));
    box.append(node);
    while (box.children.length > 4) box.firstChild.remove();
    setTimeout(() => node.remove(), failed ? ms * 2 : ms);
    return node;
  }
  /** A dialog; `body` are nodes, `actions` [{label, value, kind}]. Resolves to the value chosen, or null. */
  function ask({ title, body = [], actions }) {
    return new Promise((resolve) => {
      let chosen = null;
      const box = el("dialog", { class: "rl-dialog" }, el("h2", {}, title), body,
        el("div", { class: "rl-actions" }, actions.map((a) =>
          el("button", { type: "button", class: `rl-button ${a.kind ?? ""}`, autofocus: a.focus, onclick: () => { chosen = a.value; box.close(); } }, a.label))));
      box.addEventListener("close", () => { box.remove(); resolve(chosen); });
      document.body.append(box);
      box.showModal();
    });
  }
  /** Ask before something that cannot be undone. */
  const confirm = ({ title, text, action = "Delete", danger = true }) => ask({
    title, body: [el("p", {}, text)],
    actions: [{ label: "Cancel", value: false, focus: true }, { label: action, value: true, kind: danger ? "rl-danger" : "rl-primary" }],
  }).then(Boolean);

  /* ---- Keys ---- */
  const groups = new Map();
  /** keys.add("Dialogues", [{keys: ["j", "ArrowDown"], text: "next turn", run(event) {…}, typing: false}]); returns a remover. */
  const keys = {
    add(group, list) {
      groups.set(group, [...(groups.get(group) ?? []), ...list]);
      return () => groups.set(group, (groups.get(group) ?? []).filter((item) => !list.includes(item)));
    },
    help() {
      if (document.querySelector("dialog.rl-dialog[open]")) return;
      const show = (key) => ({ ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", " ": "Space", Escape: "Esc" })[key] ?? key;
      ask({
        title: "Keys", actions: [{ label: "Close", value: null, focus: true }],
        body: [el("dl", { class: "rl-keys" }, [...groups].filter(([, list]) => list.length).map(([name, list]) => [el("h3", {}, name),
          list.map((item) => [el("dt", {}, item.keys.map((key) => el("kbd", {}, show(key)))), el("dd", {}, item.text)])]))],
      });
    },
  };
  const typing = (node) => node instanceof Element && (node.isContentEditable || node.matches("input:not([type=checkbox]):not([type=radio]):not([type=button]), textarea, select"));
  const named = (event) => `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${event.key}`;
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const key = named(event);
    const inField = typing(event.target);
    for (const list of [...groups.values()].reverse()) {
      for (const item of list) {
        if (!item.keys.includes(key) || (inField && !item.typing)) continue;
        if (item.run(event) !== false) event.preventDefault();
        return;
      }
    }
  });
  keys.add("Everywhere", [
    { keys: ["?"], text: "this list", run: () => keys.help() },
    { keys: ["/"], text: "search", run: () => { const field = document.querySelector("[data-rl-search], input[type=search]"); if (!field) return false; field.focus(); field.select?.(); } },
    { keys: ["Escape"], text: "leave a field", typing: true, run: (event) => { if (!typing(event.target)) return false; event.target.blur(); } },
    { keys: ["T"], text: "light or dark", run: () => switchTheme() },
  ]);

  /* ---- Theme: Gradio follows the system by itself, so our choice is held against it ---- */
  const root = document.documentElement;
  const theme = () => root.dataset.theme;
  function applyTheme() {
    const dark = theme() === "dark";
    if (document.body && document.body.classList.contains("dark") !== dark) document.body.classList.toggle("dark", dark);
  }
  function switchTheme(to = theme() === "dark" ? "light" : "dark") {
    root.dataset.theme = to;
    try { localStorage.setItem("rl2f.theme", to); } catch { /* a browser without storage keeps it for this page */ }
    applyTheme();
    document.dispatchEvent(new CustomEvent("rl2f:theme", { detail: to }));
  }
  window.addEventListener("storage", (event) => { if (event.key === "rl2f.theme" && event.newValue) switchTheme(event.newValue); });

  /* ---- Times and numbers ---- */
  const UNITS = [[60, "s"], [3600, "min"], [86400, "h"], [Infinity, "d"]];
  /** `3 min`, `2 h 10 min`: seconds in words. */
  function duration(seconds) {
    if (seconds === null || seconds === undefined || !isFinite(seconds)) return "";
    const s = Math.max(0, Math.round(seconds));
    if (s < 60) return `${s} s`;
    if (s < 3600) return s < 600 && s % 60 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.round(s / 60)} min`;
    if (s < 86400) return `${Math.floor(s / 3600)} h${Math.round((s % 3600) / 60) ? ` ${Math.round((s % 3600) / 60) % 60} min` : ""}`;
    return `${Math.floor(s / 86400)} d ${Math.round((s % 86400) / 3600)} h`;
  }
  function ago(t) {
    const delta = Date.now() / 1000 - t;
    const abs = Math.abs(delta);
    if (abs < 10) return delta >= 0 ? "just now" : "in a moment";
    let before = 1;
    for (const [limit, unit] of UNITS) {
      if (abs < limit) { const n = Math.floor(abs / before); return delta >= 0 ? `${n} ${unit} ago` : `in ${n} ${unit}`; }
      before = limit;
    }
    return "";
  }
  /** `<time data-t="SECONDS">` shows how long ago, with the exact time on hover; kept fresh by itself. */
  const time = (t) => (t === null || t === undefined ? el("span", { class: "rl-muted" }, "–") : freshen(el("time", { dataset: { t } })));
  function freshen(node) {
    const t = Number(node.dataset.t);
    if (!isFinite(t)) return node;
    const text = ago(t);
    if (node.textContent !== text) node.textContent = text;
    if (!node.title) { node.title = new Date(t * 1000).toLocaleString(); node.dateTime = new Date(t * 1000).toISOString(); }
    return node;
  }
  const freshenAll = () => document.querySelectorAll("time[data-t]").forEach(freshen);
  setInterval(freshenAll, 10000);
  /** A number with so many significant digits that it can be compared, none where there is none. */
  function num(value, digits = 3) {
    if (value === null || value === undefined || !isFinite(value)) return "–";
    const abs = Math.abs(value);
    if (abs >= 1000) return Math.round(value).toLocaleString("en-US");
    if (Number.isInteger(value)) return String(value);
    return abs >= 100 ? value.toFixed(0) : abs >= 10 ? value.toFixed(1) : value.toFixed(digits);
  }
  /** A small line of values as SVG. */
  function spark(values, { width = 120, height = 28 } = {}) {
    const shown = values.filter((v) => v !== null && isFinite(v));
    if (shown.length < 2) return el("span", { class: "rl-muted rl-small" }, "");
    const low = Math.min(...shown), span = Math.max(...shown) - low || 1;
    const at = (v, i) => `${((i / (shown.length - 1)) * (width - 4) + 2).toFixed(1)},${(height - 3 - ((v - low) / span) * (height - 6)).toFixed(1)}`;
    return el("svg:svg", { class: "rl-spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `from ${num(shown[0])} to ${num(shown.at(-1))}` },
      el("svg:polyline", { points: shown.map(at).join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.5, "stroke-linejoin": "round" }),
      el("svg:circle", { cx: at(shown.at(-1), shown.length - 1).split(",")[0], cy: at(shown.at(-1), shown.length - 1).split(",")[1], r: 2, fill: "currentColor" }));
  }
  const badge = (status, detail = "") => el("span", { class: "rl-badge", dataset: { status }, title: detail || null }, status);

  /* ---- Widgets: Gradio puts their places on the page when it is ready ---- */
  const makers = new Map();
  const made = new WeakSet();
  function widget(name, make) { makers.set(name, make); queueMicrotask(place); } // once the script that calls has run to its end
  function place() {
    // Gradio dresses raw HTML as an article (bordered tables, large headings); ours brings its own clothes
    for (const node of document.querySelectorAll(".html-container > .prose")) {
      if (node.querySelector("[class^='rl-'], [data-rl-widget]")) node.classList.remove("prose", "gradio-style");
    }
    for (const node of document.querySelectorAll("[data-rl-widget]")) {
      const make = makers.get(node.dataset.rlWidget);
      if (!make || made.has(node)) continue;
      made.add(node);
      make(node);
      node.dataset.made = "";
    }
  }

  document.addEventListener("click", (event) => {
    const act = event.target.closest?.("[data-rl-act]")?.dataset.rlAct;
    if (act === "keys") keys.help();
    else if (act === "theme") switchTheme();
    else for (const menu of document.querySelectorAll("details.rl-menu[open]")) if (!menu.contains(event.target)) menu.open = false;
  });
  const title = document.title;
  addEventListener("DOMContentLoaded", () => {
    applyTheme();
    new MutationObserver(applyTheme).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    let waiting = false;
    new MutationObserver(() => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => { waiting = false; place(); freshenAll(); });
    }).observe(document.body, { childList: true, subtree: true });
    // Gradio writes one title on every page
    const node = document.querySelector("title");
    const own = document.title || title;
    new MutationObserver(() => { if (document.title !== rl2f.title) document.title = rl2f.title; }).observe(document.head, { childList: true, subtree: true, characterData: true });
    rl2f.title = own;
    if (node) node.dataset.own = "1";
    document.querySelector(".rl-nav [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
    place();
  });

  window.rl2f = {
    el, fill, query, setQuery, links, api, Failure, poll, toast, ask, confirm, keys, theme, switchTheme, duration, ago, time, freshen, num, spark,
    badge, widget, title, readOnly: meta("rl2f-read-only") === "1",
  };
})();
