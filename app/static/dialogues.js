"use strict";
/* Page Dialogues: filters, a list in pages, one dialogue beside it. What is shown stands in the address. */
rl2f.widget("dialogues", (root) => {
  const { el, fill, api, keys, toast } = rl2f;
  const { signs, signed, fixed, inline, selected, labeller, LABELS } = rl2f.transcript;
  const FILTERS = ["run", "phase", "stage", "step", "environment", "level", "checkpoint", "control", "solved", "reward", "leak", "labelled", "error", "group", "task", "order", "search"];
  const LABEL_KEYS = { 1: "leak", 2: "no_leak", 3: "unsure" };
  const RANGES = {  // one value, or two with a dash or dots between; either may be left out
    step: /^\s*(\d*)\s*(?:(–|-|\.\.)\s*(\d*))?\s*$/,
    reward: /^\s*(-?(?:\d+\.?\d*|\.\d+))?\s*(?:(–|\.\.)\s*(-?(?:\d+\.?\d*|\.\d+))?)?\s*$/,
  };

  let filters = {}, list = null, rows = [], at = -1, view = null, wanted = 0, facets = null, seen = null;
  let current = null;  // {run, event, turn, tokens, group}
  const cache = new Map();
  const narrow = matchMedia("(max-width: 860px)");

  /* ---- Address ---- */
  function readAddress() {
    const query = rl2f.query();
    filters = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
    if (query.step_from || query.step_to) filters.step = `${query.step_from ?? ""}–${query.step_to ?? ""}`;
    if (query.reward_from || query.reward_to) filters.reward = `${query.reward_from ?? ""}..${query.reward_to ?? ""}`;
    const turn = Number.parseInt(query.turn ?? "0", 10);
    return query.dialogue ? { run: Number(query.of ?? query.run), event: query.dialogue, turn: turn > 0 ? turn : 0, tokens: query.tokens === "1", group: query.view === "group" } : null;
  }
  function writeAddress(push = false) {
    const c = current;
    rl2f.setQuery({
      ...Object.fromEntries(FILTERS.map((name) => [name, filters[name] ?? null])), step_from: null, step_to: null, reward_from: null, reward_to: null,
      dialogue: c?.event, of: c && String(c.run) !== filters.run ? c.run : null, turn: c ? c.turn : null, tokens: c?.tokens ? "1" : null, view: c?.group ? "group" : null,
    }, { push });
  }
  /** The filters as the server takes them. */
  function params(more = {}) {
    const out = new URLSearchParams();
    for (const [name, value] of Object.entries(filters)) {
      if (name !== "step" && name !== "reward") { out.set(name, value); continue; }
      const [, low, dash, high] = RANGES[name].exec(value) ?? [];
      if (low) out.set(`${name}_from`, low);
      if (dash ? high : low) out.set(`${name}_to`, dash ? high : low);
    }
    for (const [name, value] of Object.entries(more)) if (value !== null && value !== undefined) out.set(name, value);
    return out;
  }

  /* ---- Frame ---- */
  const waiting = (height) => el("div", { class: "rl-skeleton", style: { height } });
  const bar = el("div", { class: "dl-filters" });
  const listNode = el("div", { class: "dl-list", role: "listbox", "aria-label": "dialogues", tabindex: -1 }, waiting("120px"));
  const pager = el("div", { class: "dl-pager rl-row" });
  const paneBody = el("div", { class: "dl-body" }, waiting("180px"));
  const pane = el("section", { class: "dl-pane", "aria-label": "dialogue" },
    el("div", { class: "dl-back" }, el("button", { type: "button", class: "rl-button rl-small", onclick: () => toList() }, "← List"), el("span", { class: "rl-grow" }),
      el("button", { type: "button", class: "rl-button rl-small", "aria-label": "previous dialogue", onclick: () => go(-1) }, "▲ p"), el("button", { type: "button", class: "rl-button rl-small", "aria-label": "next dialogue", onclick: () => go(1) }, "▼ n")),
    paneBody);
  const foot = el("div", { class: "dl-foot rl-muted rl-small" },
    [["j", "k"], "turn", ["n", "p"], "dialogue", ["N", "P"], "step", ["1", "2", "3"], "label", ["u"], "undo", ["f"], "fork", ["v"], "group", ["t"], "tokens", ["c"], "copy link", ["?"], "all keys"]
      .map((part) => (Array.isArray(part) ? part.map((key) => el("kbd", {}, key)) : el("span", {}, part))));
  fill(root, bar, el("div", { class: "dl-main" }, el("section", { class: "dl-side", "aria-label": "list" }, pager, listNode), pane), foot);
  root.dataset.view = "list";
  try { root.dataset.font = localStorage.getItem("rl2f.font") ?? "mono"; } catch { root.dataset.font = "mono"; }

  const shown = rl2f.dialogueView(paneBody, {
    turn: (index) => moveTurn(index),
    label: (label) => give(label),
    group: () => toggleGroup(),
    tokens: () => toggleTokens(),
    copy: () => copyLink(),
    refresh: () => reload().catch(() => {}),
    fork: (index) => fork(index),
  });

  /* ---- Filters ---- */
  function choice(name, title, options, always = true) {
    const value = filters[name] ?? "";
    if (!always && options.length < 2 && !value) return null;
    const known = options.some(([v]) => String(v) === value);
    return el("label", { class: "dl-filter", "data-set": value ? "" : null }, el("span", {}, title), el("select", { class: "rl-field", name, onchange: (event) => change({ [name]: event.target.value }) },
      el("option", { value: "" }, "any"), known || !value ? null : el("option", { value, selected: true }, value),
      options.map(([v, text]) => el("option", { value: v, selected: String(v) === value }, text))));
  }
  const field = (name, title, placeholder, more = {}) => el("label", { class: "dl-filter", "data-set": filters[name] ? "" : null }, el("span", {}, title),
    el("input", { type: "text", class: "rl-field", name, value: filters[name] ?? "", placeholder, ...more, onchange: (event) => change({ [name]: event.target.value.trim() }) }));
  const same = (values) => values.map((v) => [v, v]);
  function drawFilters() {
    const f = facets?.facets ?? { phases: [], stages: [], levels: [], environments: [], checkpoints: [], controls: [], steps: [0, 0], longest: 0 };
    const focus = document.activeElement?.getAttribute?.("name");
    const extra = ["stage", "level", "reward", "error", "task", "group", "environment"].filter((name) => filters[name]).length;
    const open = bar.querySelector("details")?.open ?? false;
    const search = el("input", { type: "search", class: "rl-field dl-search", name: "search", placeholder: "Search text  /", "aria-label": "search text", value: filters.search ?? "", maxlength: 300, dataset: { rlSearch: "1" } });
    let waiting = null;
    search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => change({ search: search.value.trim() }, false), 250); });
    search.addEventListener("keydown", (event) => { if (event.key === "Enter") { clearTimeout(waiting); change({ search: search.value.trim() }, false); search.blur(); } });
    fill(bar,
      choice("run", "run", (facets?.runs ?? []).map((r) => [r.id, `${r.id} · ${r.name}`])),
      choice("phase", "phase", same(f.phases), false),
      field("step", "step", f.steps[1] ? `${f.steps[0]}–${f.steps[1]}` : "step", { inputmode: "numeric", class: "rl-field dl-short", title: "one step, or a range such as 18–22" }),
      choice("checkpoint", "checkpoint", same(f.checkpoints), false), choice("control", "control", same(f.controls), false),
      choice("solved", "solved", [["any", "solved"], ["never", "never"], ...Array.from({ length: Math.min(f.longest, 64) }, (_, i) => [i + 1, `at turn ${i + 1}`])]),
      choice("leak", "leak", [[2, "⚑ leaked"], [1, "clean"], [0, "unchecked"]]), choice("labelled", "labels", [["true", "labelled"], ["false", "not labelled"]]),
      el("details", { class: "dl-more rl-menu", open }, el("summary", { class: "rl-button rl-small" }, extra ? `More filters (${extra})` : "More filters"),
        el("div", { class: "dl-more-items" }, choice("environment", "environment", same(f.environments)), choice("level", "level", same(f.levels)), choice("stage", "stage", same(f.stages)),
          field("reward", "return", "0.5..1", { title: "one value, or a range such as 0.5..1" }), field("task", "task", "its id"), filters.group ? field("group", "group", "") : null,
          choice("error", "error", [["true", "ended by an error"]]))),
      el("span", { class: "rl-grow" }), search,
      Object.keys(filters).some((name) => name !== "run") ? el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: () => change(Object.fromEntries(FILTERS.filter((n) => n !== "run").map((n) => [n, ""]))) }, "Clear") : null);
    if (focus) bar.querySelector(`[name="${CSS.escape(focus)}"]`)?.focus();
  }
  async function change(values, redraw = true) {
    const before = JSON.stringify(filters);
    for (const [name, range] of Object.entries(RANGES)) {
      if (!values[name] || range.test(values[name])) continue;
      toast(`The ${name === "step" ? "step" : "return"} is a number, or a range such as ${name === "step" ? "18–22" : "0.5..1"}.`, { kind: "error" });
      return;
    }
    for (const [name, value] of Object.entries(values)) if (value === "") delete filters[name]; else filters[name] = String(value);
    if (JSON.stringify(filters) === before) return;
    if ("run" in values) { facets = null; for (const name of ["stage", "checkpoint", "control", "level", "step", "group", "task"]) if (!(name in values)) delete filters[name]; }
    current = null;
    writeAddress();
    if (redraw) drawFilters();
    await Promise.all([facets ? null : loadFacets().catch(() => {}), loadList(null)]);
  }
  async function loadFacets() {
    facets = await api(`/api/dialogues/facets?${new URLSearchParams(filters.run ? { run: filters.run } : {})}`, { quiet: true });
    seen = facets.version;
    drawFilters();
    if (list) drawPager();
  }

  /* ---- List ---- */
  /** Load a page: by cursor, or the one that holds `place` ({run, event}). Then select something where nothing is. */
  async function loadList(cursor, { place = null, last = false, select = true } = {}) {
    const turn = ++wanted;
    root.toggleAttribute("data-busy", true);
    try {
      const page = place
        ? await api(`/api/dialogues/locate?${params({ dialogue: place.event, of: place.run })}`, { quiet: true }).catch(async (error) => {
          if (error.status === 503 || !error.status) throw error;
          return api(`/api/dialogues?${params()}`);
        })
        : await api(`/api/dialogues?${params({ cursor })}`);
      if (turn !== wanted) return;
      list = { ...page, cursor };
      rows = page.rows;
      drawList();
      if (place) at = find(place);
      else if (select && rows.length && !(narrow.matches && root.dataset.view === "list")) await open(rows[last ? rows.length - 1 : 0]);
      else at = current ? find(current) : -1;
      if (!rows.length && !current) nothing();
      else if (!current) fill(paneBody, el("p", { class: "rl-muted" }, "Pick a dialogue from the list."));
      markRow();
    } catch (error) {
      if (turn === wanted) failed(listNode, error);
    } finally {
      if (turn === wanted) root.toggleAttribute("data-busy", false);
    }
  }
  const find = (place) => rows.findIndex((row) => row.event === place.event && row.run === place.run);
  function drawPager() {
    const last = list.first + rows.length - 1;
    fill(pager, el("span", { class: "rl-num" }, rows.length ? `${list.first.toLocaleString("en-US")}–${last.toLocaleString("en-US")} of ${(list.total ?? 0).toLocaleString("en-US")}` : "0 dialogues"), el("span", { class: "rl-grow" }),
      facets?.facets.measured || filters.order ? el("select", { class: "rl-field dl-order", name: "order", "aria-label": "order", onchange: (event) => change({ order: event.target.value }) },
        [["", "as played"], ["-worth", "hint worth ↓"], ["worth", "hint worth ↑"]].map(([value, text]) => el("option", { value, selected: value === (filters.order ?? "") }, text))) : null,
      el("button", { type: "button", class: "rl-button rl-small", disabled: !list.before, "aria-label": "page before", onclick: () => loadList(list.before) }, "◄"),
      el("button", { type: "button", class: "rl-button rl-small", disabled: !list.after, "aria-label": "page after", onclick: () => loadList(list.after) }, "►"));
  }
  function drawList() {
    drawPager();
    fill(listNode, rows.map(line));
    listNode.scrollTop = 0;
  }
  function line(row) {
    const where = row.checkpoint ? `${row.checkpoint}${row.control ? ` · ${row.control}` : ""}` : [row.stage, ["train", "distill"].includes(row.phase) ? row.step : row.phase, row.control?.replaceAll("_", " ")].filter((part) => part || part === 0).join(" ");
    return el("button", { type: "button", class: "dl-row", role: "option", dataset: { event: row.event }, onclick: () => open(row, { push: narrow.matches }), onpointerenter: () => load(row.run, row.event).catch(() => {}) },
      el("span", { class: "dl-row-top" }, signs(row.outcomes), el("span", { class: "rl-grow" }),
        row.error !== null ? el("span", { class: "rl-wrong", title: "ended by an error" }, "!") : null, row.leak === 2 ? el("span", { class: "rl-leak", title: "a hint leaked" }, "⚑") : null,
        row.labels ? el("span", { class: "dl-labelled", title: `${row.labels} hint(s) labelled` }, `●${row.labels > 1 ? row.labels : ""}`) : null,
        row.worth === null ? null : el("span", { class: "rl-num rl-teacher", title: "the most that one of its hints was worth: p(solve | hint) − p(solve | contentless)" }, `w ${signed(row.worth)}`),
        el("span", { class: "rl-num", title: "return" }, `r ${fixed(row.reward)}`), el("span", { class: "rl-num dl-adv", title: "advantage" }, row.advantage === null ? "" : `A ${signed(row.advantage)}`)),
      el("span", { class: "dl-row-sub rl-muted" }, filters.run ? null : el("span", {}, `run ${row.run}`), inline(where, 40), el("span", { class: "rl-cut" }, inline(row.key, 60))));
  }
  function markRow() {
    listNode.querySelectorAll(".dl-row").forEach((node, i) => {
      node.toggleAttribute("data-current", i === at);
      node.setAttribute("aria-selected", String(i === at));
      if (i === at) node.scrollIntoView({ block: "nearest" });
    });
  }
  function nothing() {
    const filtered = Object.keys(filters).some((name) => name !== "run");
    fill(listNode);
    fill(paneBody, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, filtered ? "No dialogue fits these filters" : "No dialogues yet"),
      el("p", {}, filtered ? "Take a filter away, or search for other words." : "A run writes its dialogues as it plays them. Start one, or pick another run."),
      el("p", { class: "rl-actions" }, filtered ? el("button", { type: "button", class: "rl-button rl-primary", onclick: () => change(Object.fromEntries(FILTERS.filter((n) => n !== "run").map((n) => [n, ""]))) }, "Clear filters")
        : el("a", { class: "rl-button rl-primary", href: rl2f.links.fresh() }, "New run"), el("a", { class: "rl-button", href: rl2f.links.runs() }, "All runs"))));
    if (narrow.matches) fill(listNode, paneBody.firstChild.cloneNode(true));
  }
  function failed(node, error) {
    if (error.name === "AbortError") return;
    fill(node, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? "The page could not be shown"),
      el("p", {}, [error.value !== null && error.value !== undefined ? `Got: ${error.value}.` : "", error.fix ?? ""].filter(Boolean).join(" ")),
      el("p", { class: "rl-actions" }, el("a", { class: "rl-button", href: rl2f.links.dialogues() }, "All dialogues"))));
    if (!(error instanceof rl2f.Failure)) console.error(error);
  }

  /* ---- One dialogue ---- */
  const name = (run, event) => `${run} ${event}`;
  /** A dialogue, from memory where it was asked for before. */
  function load(run, event) {
    const key = name(run, event);
    if (cache.has(key)) { const held = cache.get(key); cache.delete(key); cache.set(key, held); return held; }
    const asked = api(`/api/dialogues/one?${new URLSearchParams({ run, dialogue: event })}`, { quiet: true });
    asked.catch(() => cache.delete(key));
    cache.set(key, asked);
    while (cache.size > 60) cache.delete(cache.keys().next().value);
    return asked;
  }
  function prefetch() {
    for (const i of [at + 1, at - 1, at + 2]) if (rows[i]) load(rows[i].run, rows[i].event).catch(() => {});
  }
  async function open(row, { turn = 0, push = false, tokens = current?.tokens ?? false, group = false, event = row.event } = {}) {
    current = { run: row.run, event, turn, tokens, group };
    at = find(current);
    markRow();
    if (narrow.matches || push) root.dataset.view = "dialogue";
    writeAddress(push);
    const mine = current;
    pane.toggleAttribute("data-busy", true);  // what stands there is another dialogue: no key may act on it
    view = null;
    try {
      const found = await load(mine.run, mine.event);
      if (current !== mine) return;
      draw(found);
      paneBody.scrollTop = 0;
      if (current.turn && !current.group) shown.turn(current.turn);
      prefetch();
    } catch (error) {
      if (current === mine) failed(paneBody, error);
    } finally {
      if (current === mine) pane.toggleAttribute("data-busy", false);
    }
  }
  function draw(dialogue) {
    view = dialogue;
    if (current.group) { drawGroup().catch(() => {}); return; }
    delete paneBody.dataset.group;
    shown.show(dialogue, current);
    writeAddress();
  }
  async function drawGroup() {
    const mine = current;
    const found = await api(`/api/dialogues/group?${new URLSearchParams({ run: mine.run, dialogue: mine.event })}`);
    if (current !== mine || !mine.group) return;
    paneBody.dataset.group = "1";
    rl2f.groupView(paneBody, found.dialogues, mine.event, (event) => {
      if (event === null || event === mine.event) { toggleGroup(); return; }
      open({ run: mine.run, event }).catch(() => {});
    });
  }
  /** Ask the server again for what is shown. */
  async function reload() {
    if (!current) return;
    cache.delete(name(current.run, current.event));
    const mine = current;
    const found = await load(mine.run, mine.event);
    if (current !== mine) return;
    const top = paneBody.scrollTop;
    draw(found);
    paneBody.scrollTop = top;
    await refreshRows();
  }
  async function refreshRows() {
    const turn = wanted;
    const page = await api(`/api/dialogues?${params({ cursor: list?.cursor ?? null })}`, { quiet: true });
    if (turn !== wanted || !list || list.first !== page.first) return;
    const top = listNode.scrollTop;
    list = { ...page, cursor: list.cursor };
    rows = page.rows;
    drawList();
    listNode.scrollTop = top;
    at = current ? find(current) : -1;
    listNode.children[at]?.toggleAttribute("data-current", true);
  }

  /* ---- Moving ---- */
  function moveTurn(index) {
    if (!current || current.group) return;
    current.turn = view ? shown.turn(index) : Math.max(0, index);  // one that is still on its way takes its turn with it
    writeAddress();
  }
  async function go(step) {
    const next = rows[at + step];
    if (next && at >= 0) return open(next);
    const cursor = step > 0 ? list?.after : list?.before;
    if (at < 0 && rows.length) return open(rows[0]);
    if (cursor) await loadList(cursor, { last: step < 0 });
  }
  async function jump(to) {
    if (!current && to.endsWith("step")) return;
    const here = current ?? { run: filters.run ?? 0, event: "" };
    const found = await api(`/api/dialogues/move?${params({ dialogue: here.event, of: here.run, to })}`);
    if (!found.row) { toast(to === "next_step" ? "This is the last step of the list." : "This is the first step of the list."); return; }
    const row = found.row;
    if (find(row) >= 0) return open(row);
    await Promise.all([open(row), loadList(null, { place: row, select: false })]);
  }
  function toList() {
    root.dataset.view = "list";
    current = null;
    writeAddress(true);
    markRow();
  }
  function toggleGroup() {
    if (!current) return;
    current.group = !current.group;
    writeAddress();
    if (view) draw(view);
  }
  function toggleTokens() {
    if (!current || current.group) return;
    current.tokens = !current.tokens;
    if (view) shown.tokens(current.tokens);
    writeAddress();
  }
  /** What if the hint after this turn had been different? */
  function fork(index = current?.turn ?? 0) {
    if (current && !current.group) location.href = rl2f.links.fork(current.run, current.event, index);
  }
  async function copyLink() {
    writeAddress();
    try {
      await navigator.clipboard.writeText(location.href);
      toast("Link copied: it opens exactly this turn.");
    } catch {
      await rl2f.ask({ title: "Copy this link", body: [el("input", { type: "text", class: "rl-field", style: { width: "100%" }, readonly: true, value: location.href, onfocus: (event) => event.target.select() })], actions: [{ label: "Close", value: null }] });
    }
  }

  /* ---- Labels ---- */
  async function give(label) {
    if (!current || current.group || !view || rl2f.readOnly) return;
    const turn = view.turns[current.turn];
    if (!turn?.hint) { toast("No hint stands after this attempt."); return; }
    const who = (shown.nameField()?.value ?? labeller.get()).trim();
    if (!who) { shown.nameField()?.focus(); toast("Type your name first: labels are kept by labeller."); return; }
    labeller.set(who);
    const box = shown.hintBlock();
    const held = turn.hint.labels.find((l) => l.labeller === who);
    const span = (box && selected(box)) ?? (held && held.start !== null ? { start: held.start, end: held.end } : null);
    await api("/api/labels", { method: "PUT", body: { run: current.run, event: current.event, turn: current.turn, labeller: who, label, start: span?.start ?? null, end: span?.end ?? null, note: shown.noteText(), blind: false } });
    document.getSelection()?.removeAllRanges();
    toast(`Turn ${current.turn + 1}: ${LABELS[label]}${span ? ", with the marked words" : ""}.`, { ms: 2500 });
    await reload();
  }
  async function undo() {
    const who = labeller.get();
    if (!who || rl2f.readOnly) return;
    const { undone } = await api("/api/labels/undo", { body: { labeller: who } });
    if (!undone) { toast("Nothing is left to undo."); return; }
    cache.delete(name(undone.run_id, undone.event));
    const elsewhere = !current || undone.event !== current.event || undone.run_id !== current.run;
    toast(`Undone: ${LABELS[undone.label]} on turn ${undone.turn + 1}.`, elsewhere ? { action: { label: "Show it", run: () => { location.href = rl2f.links.dialogue(undone.run_id, undone.event, undone.turn); } } } : {});
    await (elsewhere ? refreshRows() : reload());
  }

  /* ---- Keys ---- */
  const quietly = (work) => () => { Promise.resolve(work()).catch((error) => { if (!(error instanceof rl2f.Failure)) console.error(error); }); };
  keys.add("Dialogues", [
    { keys: ["j", "ArrowDown"], text: "next turn", run: () => moveTurn((current?.turn ?? 0) + 1) },
    { keys: ["k", "ArrowUp"], text: "turn before", run: () => moveTurn((current?.turn ?? 0) - 1) },
    { keys: ["n"], text: "next dialogue", run: quietly(() => go(1)) },
    { keys: ["p"], text: "dialogue before", run: quietly(() => go(-1)) },
    { keys: ["N"], text: "next step", run: quietly(() => jump("next_step")) },
    { keys: ["P"], text: "step before", run: quietly(() => jump("previous_step")) },
    { keys: ["g"], text: "first dialogue", run: quietly(() => jump("first")) },
    { keys: ["G"], text: "last dialogue", run: quietly(() => jump("last")) },
    ...Object.entries(LABEL_KEYS).map(([key, label]) => ({ keys: [key], text: `label the turn's hint: ${LABELS[label]}`, run: quietly(() => give(label)) })),
    { keys: ["u"], text: "undo your last label", run: quietly(undo) },
    { keys: ["f"], text: "fork: what if the hint after this turn had been different?", run: () => fork() },
    { keys: ["v"], text: "the group side by side", run: toggleGroup },
    { keys: ["t"], text: "tokens and their log-probabilities", run: toggleTokens },
    { keys: ["a"], text: "show or hide the answer", run: () => { if (view && !current?.group) shown.reveal(); } },
    { keys: ["e"], text: "expand everything", run: () => shown.fold(true) },
    { keys: ["x"], text: "collapse everything", run: () => shown.fold(false) },
    { keys: ["m"], text: "reading or mono font", run: () => {
      root.dataset.font = root.dataset.font === "reading" ? "mono" : "reading";
      try { localStorage.setItem("rl2f.font", root.dataset.font); } catch { /* then it holds for this page */ }
    } },
    { keys: ["c"], text: "copy a link to this turn", run: quietly(copyLink) },
  ]);

  /* ---- Begin ---- */
  async function begin() {
    const place = readAddress();
    root.dataset.view = place ? "dialogue" : "list";
    drawFilters();
    const facetsAsked = loadFacets().then(() => null, (error) => error);
    if (place) {
      await Promise.all([open(place, { turn: place.turn, tokens: place.tokens, group: place.group }), loadList(null, { place, select: false })]);
    } else {
      current = null;
      await loadList(null);
    }
    const error = await facetsAsked;
    if (error?.status === 404) failed(paneBody, error);
  }
  addEventListener("popstate", () => { begin().catch(() => {}); });
  begin().catch((error) => failed(paneBody, error));
  rl2f.poll(async () => {
    if (seen === null || !list) return;
    const { version } = await api(`/api/dialogues/version?${new URLSearchParams(filters.run ? { run: filters.run } : {})}`, { quiet: true });
    if (version === seen) return;
    seen = version;
    await refreshRows();
  }, 5000);
});
