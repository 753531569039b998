"use strict";
/* Page Labels: one hint after the other, and the board of agreement. What is shown stands in the address. */
rl2f.widget("labels", (root) => {
  const { el, fill, api, keys, toast } = rl2f;
  const { block, inline, sign, selected, labelChip, finding, labeller, LABELS } = rl2f.transcript;
  const FILTERS = ["which", "run", "environment", "todo", "size", "seed", "blind", "source", "by"];
  const WHICH = [["all", "all hints"], ["mixed", "random draw, mixed"], ["flagged", "flagged by a detector"], ["audit", "unflagged: random sample"]];
  const VIEWS = [["queue", "Label"], ["board", "Detector board"], ["benchmark", "Benchmark"]];
  const drawn = () => filters.which === "mixed" || filters.which === "audit";

  let filters = {}, who = "", items = [], at = -1, hint = null, draft = null, done = 0, total = 0, capped = false, facets = null, sources = [], shownBoard = null, mark = null, ends = { after: false, before: false }, tab = "queue", wanted = 0, busy = false;
  const cache = new Map();
  /** While what stands there is not what was asked for, no key may act on it. */
  function working(on) { busy = on; stage.setAttribute("aria-busy", String(on)); }

  /* ---- Address ---- */
  function readAddress() {
    const query = rl2f.query();
    filters = Object.fromEntries(FILTERS.filter((name) => query[name]).map((name) => [name, query[name]]));
    who = (query.labeller ?? labeller.get()).trim();
    if (query.labeller) labeller.set(who);
    tab = VIEWS.some(([name]) => name === query.view) ? query.view : "queue";
    return query.dialogue ? { run: Number(query.of ?? query.run), event: query.dialogue, turn: Number.parseInt(query.turn ?? "0", 10) || 0 } : null;
  }
  function writeAddress() {
    const item = tab === "queue" ? items[at] : tab === "board" ? mark : null;
    rl2f.setQuery({ ...Object.fromEntries(FILTERS.map((name) => [name, filters[name] ?? null])), labeller: who, view: tab === "queue" ? null : tab,
      dialogue: item?.event, of: item && String(item.run) !== filters.run ? item.run : null, turn: item ? item.turn : null });
  }
  const blind = () => filters.blind !== "0" && filters.which !== "flagged";
  function params(more = {}) {
    const out = new URLSearchParams({ labeller: who });
    for (const name of ["which", "run", "environment", "todo", "size", "seed", "source", ...(tab === "board" ? ["by"] : [])]) if (filters[name]) out.set(name, filters[name]);
    for (const [name, value] of Object.entries(more)) out.set(name, value);
    return out;
  }

  /* ---- Frame ---- */
  const bar = el("div", { class: "lb-bar" });
  const meter = el("div", { class: "lb-meter" });
  const stage = el("div", { class: "lb-stage" });
  const foot = el("div", { class: "dl-foot rl-muted rl-small" },
    [["1", "2", "3"], "label", ["Ctrl+Enter"], "save and next", ["n", "p"], "next, before", ["s"], "skip", ["u"], "undo", ["[", "]"], "mark a word", ["w"], "why", ["a"], "answer", ["b"], "board", ["?"], "all keys"]
      .map((part) => (Array.isArray(part) ? part.map((key) => el("kbd", {}, key)) : el("span", {}, part))));
  fill(root, bar, meter, stage, foot);

  function drawBar() {
    const pick = (name, title, options, fallback = "") => el("label", { class: "dl-filter" }, el("span", {}, title), el("select", { class: "rl-field", name, onchange: (event) => change({ [name]: event.target.value }) },
      fallback !== null ? el("option", { value: "" }, fallback) : null, options.map(([v, text]) => el("option", { value: v, selected: String(v) === (filters[name] ?? "") }, text))));
    const number = (name, title, fallback) => el("label", { class: "dl-filter" }, el("span", {}, title), el("input", { type: "text", inputmode: "numeric", class: "rl-field dl-short", name, value: filters[name] ?? "", placeholder: fallback, onchange: (event) => change({ [name]: /^\d*$/.test(event.target.value.trim()) ? event.target.value.trim() : "" }) }));
    const check = (name, title, on, hint_, off = "") => el("label", { class: "lb-check", title: hint_ }, el("input", { type: "checkbox", name, checked: on, onchange: (event) => change({ [name]: event.target.checked ? (name === "blind" ? "" : "true") : off }) }), title);
    fill(bar,
      el("div", { class: "lb-tabs", role: "group", "aria-label": "view" }, VIEWS.map(([name, title]) => el("button", { type: "button", class: "rl-button", "aria-pressed": String(tab === name), onclick: () => switchTab(name) }, title))),
      tab === "benchmark" ? null : el("label", { class: "dl-filter" }, el("span", {}, "labeller"), el("input", { type: "text", class: "rl-field lb-name", name: "labeller", value: who, placeholder: "your name", maxlength: 60, onchange: (event) => rename(event.target.value) })),
      tab === "queue" ? pick("which", "hints", WHICH.slice(1), WHICH[0][1]) : null, tab === "benchmark" ? null : [pick("run", "run", (facets?.runs ?? []).map((r) => [r.id, `${r.id} · ${r.name}`]), "any"),
      pick("environment", "environment", (facets?.environments ?? []).map((e) => [e, e]), "any")],
      sources.length > 1 && (tab === "board" || (tab === "queue" && drawn())) ? pick("source", tab === "board" ? "findings of" : "flagged by", sources.slice(1).map((s) => [s.name, `run ${s.name} · ${s.detectors}`]), "at run time") : null,
      tab === "queue" && drawn() ? [number("size", "sample of", "200"), number("seed", "seed", "0")] : null,
      tab === "queue" ? [check("todo", "only what I have not labelled", filters.todo === "true", "leave out hints that you have answered"),
        filters.which === "flagged" ? el("span", { class: "rl-muted rl-small lb-check" }, "not blind: every hint here was flagged") : check("blind", "blind", filters.blind !== "0", "the detectors' finding stays hidden until you have answered", "0")] : null);
  }
  async function change(values, { keep = false } = {}) {
    for (const [name, value] of Object.entries(values)) if (value === "") delete filters[name]; else filters[name] = value;
    cache.clear(); items = []; at = -1; hint = null;
    drawBar();
    await begin(null, keep);
  }
  async function rename(name) {
    who = name.trim();
    labeller.set(who);
    document.activeElement?.blur();
    cache.clear();
    const place = items[at] ?? null;
    await begin(place);
  }
  async function switchTab(name) {
    tab = name;
    mark = null;
    const place = items[at] ?? null;
    drawBar();
    await begin(name === "queue" ? place : null);
  }

  /* ---- Queue ---- */
  function drawMeter() {
    const share = total ? Math.min(100, (100 * done) / total) : 0;
    fill(meter, tab === "queue" && total ? [el("div", { class: "rl-progress", role: "progressbar", "aria-valuenow": done, "aria-valuemin": 0, "aria-valuemax": total, "aria-label": "labelled" }, el("i", { style: { width: `${share}%` } })),
      el("span", { class: "rl-num rl-small rl-muted" }, capped ? `${done.toLocaleString("en-US")} of more than 10,000 labelled` : `${done.toLocaleString("en-US")} of ${total.toLocaleString("en-US")} labelled`)] : null);
  }
  const same = (a, b) => a.run === b.run && a.event === b.event && a.turn === b.turn;
  const place = (item, way) => ({ at_run: item.run, at_event: item.event, at_turn: item.turn, way });
  function counted(answer) { ({ done, total, capped } = answer); drawMeter(); }
  async function extend(way) {
    if (!items.length || ends[way]) return;
    const got = await api(`/api/labels/queue?${params(place(way === "after" ? items.at(-1) : items[0], way))}`);
    counted(got);
    if (!got.items.length) ends[way] = true;
    const fresh = got.items.filter((item) => !items.some((held) => same(held, item)));
    if (way === "after") items.push(...fresh); else { items.unshift(...fresh); at += fresh.length; }
  }
  const key = (item) => `${item.run} ${item.event} ${item.turn}`;
  function load(item) {
    if (!cache.has(key(item))) {
      const asked = api(`/api/labels/hint?${new URLSearchParams({ run: item.run, event: item.event, turn: item.turn, labeller: who, blind: blind() })}`, { quiet: true });
      asked.catch(() => cache.delete(key(item)));
      cache.set(key(item), asked);
      while (cache.size > 40) cache.delete(cache.keys().next().value);
    }
    return cache.get(key(item));
  }
  async function show(index) {
    at = index;
    const turn = ++wanted;
    working(true);
    writeAddress();
    try {
      const found = await load(items[at]);
      if (turn !== wanted) return;
      take(found);
      if (items[at + 1]) load(items[at + 1]).catch(() => {});
      if (at + 3 >= items.length) extend("after").then(() => { if (items[at + 1]) load(items[at + 1]).catch(() => {}); }).catch(() => {});
    } catch (error) {
      if (turn === wanted) failed(error);
    }
  }
  /** Show a hint as the server tells it; what was marked or written for it starts from the stored answer. */
  function take(found) {
    hint = found;
    working(false);
    const mine = found.mine;
    draft = { label: mine?.label ?? null, span: mine && mine.start !== null ? { start: mine.start, end: mine.end } : null, note: mine?.note ?? "" };
    drawHint();
  }
  const dirty = () => !busy && hint?.mine && draft && (draft.note !== hint.mine.note || (draft.span?.start ?? null) !== hint.mine.start || (draft.span?.end ?? null) !== hint.mine.end);

  /* ---- One hint ---- */
  function drawHint() {
    const h = hint;
    const marks = [];
    if (h.open) marks.push(...h.finding.findings.filter((f) => f.start !== null).map((f) => ({ start: f.start, end: f.end, kind: "found", title: `${f.tier ?? "detector"}: ${f.evidence}` })),
      ...h.others.filter((l) => l.start !== null).map((l) => ({ start: l.start, end: l.end, kind: "said", title: `${l.labeller}: ${LABELS[l.label]}` })));
    if (draft.span) marks.push({ ...draft.span, kind: "pending", title: "your mark" });
    const box = block(h.hint, { from: "teacher", marks, label: "the hint" });
    box.classList.add("lb-hint");
    const take_ = () => { const span = selected(box); if (span) { document.getSelection().removeAllRanges(); setSpan(span); } };
    box.addEventListener("mouseup", take_);
    box.addEventListener("touchend", () => setTimeout(take_, 0));
    const last = h.before.at(-1);
    const open = stage.querySelector("details.lb-context")?.open ?? false;
    const note = el("input", { type: "text", class: "rl-field lb-note", placeholder: "why (optional)", "aria-label": "note on the label", maxlength: 4000, value: draft.note, oninput: (event) => { draft.note = event.target.value; state(); } });
    const answer = (number, label) => el("button", { type: "button", class: `rl-button lb-answer ${draft.label === label ? "rl-primary" : ""}`, dataset: { label }, disabled: rl2f.readOnly, "aria-pressed": String(draft.label === label),
      onmousedown: (event) => event.preventDefault(), onclick: quietly(() => give(label)) }, el("kbd", {}, number), LABELS[label]);
    fill(stage, el("article", { class: "rl-card lb-card", "aria-label": "hint" },
      el("div", { class: "rl-row rl-small" }, el("a", { class: "rl-chip", href: rl2f.links.dialogue(h.run, h.event, h.turn) }, `run ${h.run} · `, inline(h.key, 60)), el("span", { class: "rl-chip" }, inline(h.environment, 40), " · ", inline(h.level, 40)),
        el("span", { class: "rl-chip" }, `hint ${h.turn + 1}`), el("span", { class: "rl-muted" }, inline(h.teacher ?? "", 40)), el("span", { class: "rl-grow" }), el("span", { class: "lb-state rl-muted" })),
      el("details", { class: "lb-context", open }, el("summary", {}, h.before.length > 1 ? `Problem and ${h.before.length - 1} earlier turn${h.before.length > 2 ? "s" : ""} (e)` : "Problem (e)"),
        el("div", { class: "lb-before" }, el("span", { class: "dv-who" }, "Problem"), block(h.problem.text, { label: "problem" }),
          h.before.slice(0, -1).map((t) => [el("span", { class: "dv-who rl-student" }, sign(t.sign), ` Student ${t.index + 1}`), block(t.attempt, { from: "student", label: `attempt ${t.index + 1}` }), t.hint === null ? null : [el("span", { class: "dv-who rl-teacher" }, `Teacher ${t.index + 1}`), block(t.hint, { from: "teacher", label: `hint ${t.index + 1}` })]]))),
      el("div", { class: "lb-last" }, el("span", { class: "dv-who rl-student" }, sign(last.sign), " Student"), block(last.attempt, { from: "student", label: "the attempt before the hint" })),
      el("div", { class: "lb-privileged" }, el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: quietly(reveal) }, "▸ answer hidden: show it (a)")),
      el("div", { class: "lb-ask" }, el("span", { class: "dv-who rl-teacher" }, "Teacher"), box,
        el("p", { class: "rl-muted rl-small lb-tip" }, draft.span ? [`marked: characters ${draft.span.start + 1}–${draft.span.end} `, el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: () => setSpan(null) }, "take the mark away (Esc)")] : "Does this hint give the answer away? Drag over the words that do.")),
      el("div", { class: "lb-answers" }, answer("1", "leak"), answer("2", "no_leak"), answer("3", "unsure"), note, el("button", { type: "button", class: "rl-button", disabled: rl2f.readOnly, onclick: quietly(saveAndNext) }, "Save and next")),
      h.open ? el("section", { class: "lb-found", "aria-label": "what others say" }, el("span", { class: "dv-who" }, "Detector"), finding(h.finding),
        h.read !== h.hint ? [el("span", { class: "rl-muted rl-small" }, h.read ? "what the student read" : "the student read nothing"), h.read ? block(h.read, { from: "teacher", label: "what the student read" }) : null] : null,
        h.others.length ? el("div", { class: "rl-row" }, h.others.map(labelChip)) : null) : null));
    state();
  }
  function state() {
    const place_ = stage.querySelector(".lb-state");
    if (place_) fill(place_, !hint.mine ? "not labelled" : dirty() ? "changed, not saved" : `✓ saved${hint.mine.blind ? ", blind" : ""}`);
  }
  function setSpan(span) { if (busy) return; draft.span = span; drawHint(); }
  async function reveal() {
    const mine = hint;
    const place_ = stage.querySelector(".lb-privileged");
    const found = await api(`/api/dialogues/privileged?${new URLSearchParams({ run: mine.run, dialogue: mine.event })}`);
    if (hint !== mine || !place_) return;
    fill(place_, el("span", { class: "dv-who" }, "Answer"), block(found.answer ?? JSON.stringify(found.privileged), { label: "answer" }));
  }
  /** Words of the hint as spans, so that marking needs no mouse. */
  function words() {
    const out = [];
    const chars = Array.from(hint.hint);
    let start = null;
    for (let i = 0; i <= chars.length; i++) {
      const blank = i === chars.length || /\s/u.test(chars[i]);
      if (blank && start !== null) { out.push({ start, end: i }); start = null; } else if (!blank && start === null) start = i;
    }
    return out;
  }
  /** Move the mark by a word, or its end alone. */
  function moveMark(step, stretch) {
    if (!hint) return;
    const all = words();
    if (!all.length) return;
    const span = draft.span;
    if (!span) { setSpan(step > 0 ? all[0] : all.at(-1)); return; }
    const first = Math.max(0, all.findIndex((w) => w.end > span.start)), until = all.findLastIndex((w) => w.start < span.end);
    const to = Math.max(0, Math.min(all.length - 1, (stretch ? until : first) + step));
    setSpan(stretch ? { start: span.start, end: all[Math.max(first, to)].end } : all[to]);
  }

  /* ---- Answers ---- */
  /** Of which random draw the queue is: only what was drawn says something of all hints. */
  const population = () => ({ which: filters.which, run: filters.run ? Number(filters.run) : null, environment: filters.environment ?? "", size: Number(filters.size ?? 200), seed: Number(filters.seed ?? 0), source: filters.source ?? "run" });
  async function give(label) {
    if (!hint || busy || rl2f.readOnly || tab !== "queue") return;
    if (!who) { toast("Type your name first: labels are kept by labeller."); bar.querySelector("[name=labeller]").focus(); return; }
    const item = items[at], before = hint.mine;
    const kept = before && before.label === label ? before.blind : blind() && !hint.open;
    const sent = { ...draft, label };
    const found = await api("/api/labels", { method: "PUT", body: { run: hint.run, event: hint.event, turn: hint.turn, labeller: who, label, start: sent.span?.start ?? null, end: sent.span?.end ?? null, note: sent.note, blind: kept, draw: drawn() ? population() : null } });
    cache.set(key(item), Promise.resolve(found));
    item.label = label;
    if (items[at] === item) take(found);
    counted(await api(`/api/labels/progress?${params()}`));
  }
  async function saveAndNext() {
    if (!hint || busy || tab !== "queue") return;
    if (!draft.label) { toast("Choose first: 1 leak, 2 no leak, 3 unsure."); return; }
    if (!hint.mine || dirty()) await give(draft.label);
    if (hint?.mine) await next();
  }
  async function next() {
    if (tab === "board") { moveDispute(1); return; }
    if (tab !== "queue") return;
    if (dirty()) await give(draft.label);
    if (at + 1 >= items.length) await extend("after");
    if (at + 1 < items.length) await show(at + 1);
    else finished();
  }
  async function previous() {
    if (tab === "board") { moveDispute(-1); return; }
    if (tab !== "queue" || !items.length) return;
    if (dirty()) await give(draft.label);
    if (hint === null) { await show(items.length - 1); return; }
    if (at === 0) await extend("before");
    if (at > 0) await show(at - 1); else toast("This is the first hint.");
  }
  async function undo() {
    if (!who || rl2f.readOnly) return;
    const { undone } = await api("/api/labels/undo", { body: { labeller: who } });
    if (!undone) { toast("Nothing is left to undo."); return; }
    const item = { run: undone.run_id, event: undone.event, turn: undone.turn };
    cache.delete(key(item));
    toast(`Undone: ${LABELS[undone.label]}.`, { ms: 2500 });
    if (tab === "board") { await begin(null); return; }
    let index = items.findIndex((held) => same(held, item));
    if (index < 0) { items.splice(Math.max(at, 0), 0, item); index = Math.max(at, 0); }
    await show(index);
    counted(await api(`/api/labels/progress?${params()}`));
  }
  const many = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
  function finished() {
    hint = null;
    working(false);
    const left = total - done;
    fill(stage, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, total === 0 ? "No hints here" : left > 0 ? "The end of the queue" : "Everything here is labelled"),
      el("p", {}, total === 0 ? emptyText() : left > 0 ? `${many(left, "hint")} skipped.` : "Choose other hints, or look at the detector board."),
      el("p", { class: "rl-actions" }, total === 0 ? el("a", { class: "rl-button rl-primary", href: rl2f.links.dialogues(filters.run ? { run: filters.run } : {}) }, "Look at dialogues")
        : el("button", { type: "button", class: "rl-button rl-primary", onclick: () => (left > 0 ? change({ todo: "true" }) : switchTab("board")) }, left > 0 ? "Label what was skipped" : "Detector board"))));
  }
  const emptyText = () => (filters.which === "flagged" ? "No detector flagged a hint of these dialogues. Label a random sample of the unflagged ones." : "Hints come from dialogues. Contentless ones cannot leak and are left out, and so are those of forks unless their run is chosen.");
  function failed(error) {
    hint = null;
    working(false);
    fill(stage, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? "The page could not be shown"), el("p", {}, [error.value !== null && error.value !== undefined ? `Got: ${error.value}.` : "", error.fix ?? ""].filter(Boolean).join(" ")),
      el("p", { class: "rl-actions" }, el("a", { class: "rl-button", href: rl2f.links.labels() }, "All hints"))));
    if (!(error instanceof rl2f.Failure)) console.error(error);
  }

  /* ---- Board ---- */
  function drawBoard(found) {
    shownBoard = found;
    if (!rl2f.board.BY.includes(filters.by ?? "tier")) delete filters.by;
    rl2f.board.draw(stage, found, filters.by ?? "tier", {
      label: () => { tab = "queue"; change({ which: "mixed" }); }, by: divide, open: quietly(openTest), close: () => begin(null),
    });
  }
  /** The disagreement that is chosen stands in the address, so that Back from its replay finds it again. */
  function moveDispute(step) {
    const to = rl2f.board.move(stage, step);
    if (!to || shownBoard?.half === "test") return;
    mark = { run: Number(to.dataset.run), event: to.dataset.event, turn: Number(to.dataset.turn) };
    writeAddress();
  }
  async function openTest() {
    if (!who) { toast("Type your name first: who opens the test half is noted."); bar.querySelector("[name=labeller]").focus(); return; }
    const sure = await rl2f.confirm({ title: "Open the test half?", text: `It is noted that ${who} opened it. Change no threshold by what it shows: a detector that was tuned on it has no honest figures left.`, action: "Open and note it", danger: false });
    if (!sure) return;
    const turn = ++wanted;
    const { which, size, seed, ...scope } = population();
    const found = await api("/api/labels/board/test", { body: { ...scope, by: filters.by ?? "tier", who } });
    if (turn === wanted) { working(false); drawBoard(found); stage.querySelector(".bd-open button")?.focus(); }
  }
  /** Break the board down by something else; the test half came with all there is. */
  async function divide(name) {
    const focused = document.activeElement?.closest(".bd-by") !== null;
    if (shownBoard?.breakdowns) {
      if (name === "tier") delete filters.by; else filters.by = name;
      writeAddress();
      drawBoard({ ...shownBoard, ...shownBoard.breakdowns[name] });
    } else await change({ by: name === "tier" ? "" : name }, { keep: true });
    if (focused) stage.querySelector(`[data-by="${name}"]`)?.focus();
  }
  function moveBy(step) {
    if (tab !== "board" || !shownBoard) return false;
    const { BY } = rl2f.board;
    quietly(() => divide(BY[(BY.indexOf(filters.by ?? "tier") + step + BY.length) % BY.length]))();
  }

  /* ---- Keys ---- */
  const quietly = (work) => () => { Promise.resolve(work()).catch((error) => { if (!(error instanceof rl2f.Failure)) console.error(error); }); };
  keys.add("Labels", [
    ...[["1", "leak"], ["2", "no_leak"], ["3", "unsure"]].map(([number, label]) => ({ keys: [number], text: LABELS[label], run: quietly(() => give(label)) })),
    { keys: ["Ctrl+Enter"], text: "save and next", typing: true, run: quietly(saveAndNext) },
    { keys: ["n", "j", "ArrowDown"], text: "next hint, next disagreement", run: quietly(next) },
    { keys: ["p", "k", "ArrowUp"], text: "hint before, disagreement before", run: quietly(previous) },
    { keys: ["s"], text: "skip", run: quietly(next) },
    { keys: ["b"], text: "the detector board, and back to the queue", run: quietly(() => switchTab(tab === "board" ? "queue" : "board")) },
    { keys: ["B"], text: "the benchmark of made hints", run: quietly(() => switchTab("benchmark")) },
    { keys: ["ArrowLeft", "ArrowRight"], text: "break the board down by something else", run: (event) => moveBy(event.key === "ArrowRight" ? 1 : -1) },
    { keys: ["o"], text: "open the test half of the board", run: quietly(() => tab === "board" && shownBoard?.half === "dev" && !rl2f.readOnly && openTest()) },
    { keys: ["u"], text: "undo your last label", run: quietly(undo) },
    { keys: ["[", "]"], text: "mark the word before, the next word", run: (event) => moveMark(event.key === "]" ? 1 : -1, false) },
    { keys: ["{", "}"], text: "mark a word less, a word more", run: (event) => moveMark(event.key === "}" ? 1 : -1, true) },
    { keys: ["Escape"], text: "take the mark away", run: () => { if (!draft?.span) return false; setSpan(null); } },
    { keys: ["w"], text: "write why", run: () => stage.querySelector(".lb-note")?.focus() },
    { keys: ["a"], text: "show the answer", run: quietly(() => hint && reveal()) },
    { keys: ["e", "x"], text: "expand, collapse the dialogue", run: (event) => { const d = stage.querySelector("details.lb-context"); if (d) { d.open = event.key === "e"; rl2f.transcript.unfold(stage, d.open); } } },
  ]);

  /* ---- Begin ---- */
  async function begin(here, keep = false) {
    const turn = ++wanted;
    working(true);
    if (!stage.firstChild || !(here || keep)) fill(stage, el("div", { class: "rl-skeleton", style: { height: "280px" } }));
    ends = { after: false, before: false };
    shownBoard = null;
    if (tab === "board") mark = here;
    if (tab !== "queue") hint = null;
    writeAddress();
    try {
      if (tab === "board") {
        drawMeter();
        const found = await api(`/api/labels/board?${params()}`);
        if (turn === wanted) { working(false); drawBoard(found); if (mark) rl2f.board.find(stage, mark)?.focus(); }
        return;
      }
      if (tab === "benchmark") {
        const found = await api("/api/labels/benchmark");
        if (turn === wanted) { working(false); rl2f.benchmark.draw(stage, found); }
        return;
      }
      const got = await api(`/api/labels/queue?${params(here ? place(here, "after") : {})}`, { quiet: true });
      if (turn !== wanted) return;
      counted(got);
      items = here ? [{ ...here }, ...got.items] : got.items;
      at = 0;
      if (!items.length) { at = -1; writeAddress(); finished(); return; }
      const first = !here && filters.todo !== "true" ? Math.max(0, items.findIndex((item) => item.label === null)) : 0;
      await show(first);
    } catch (error) {
      if (turn === wanted) failed(error);
    }
  }
  const here = readAddress();
  drawBar();
  api("/api/labels/facets", { quiet: true }).then((found) => { facets = found; drawBar(); }).catch(() => {});
  api("/api/labels/board/sources", { quiet: true }).then((found) => { sources = found; drawBar(); }).catch(() => {});
  begin(here).catch(failed);
  addEventListener("popstate", () => { const back = readAddress(); drawBar(); begin(back).catch(failed); });
});
