"use strict";
/* Page Chat: a list of conversations, the one that is open, and the settings of the next. Its state stands in the address. */
rl2f.widget("chat", (root) => {
  const { el, fill, api, toast, keys } = rl2f;
  const { Tree, thread, failure, usable } = rl2f.chatView;
  const BASE = "/api/chat";
  const readOnly = rl2f.readOnly;

  let options = null, tree = null, stream = null, busy = false, status = "", trouble = null, wanted = 0;
  let list = { rows: [], total: 0, before: null, after: null }, cursor = null, search = "";
  let draft = null;  // settings of a conversation that is not there yet
  let answer = null;
  const texts = new Map(), live = new Map(), open = new Set(), unhinted = new Set();

  /* ---- Frame ---- */
  const side = el("aside", { class: "ch-side", "aria-label": "Conversations" });
  const head = el("div", { class: "ch-head" });
  const setup = el("div", { class: "ch-setup" });
  const flow = el("div", { class: "ch-flow", "aria-live": "off" });
  const note = el("div", { class: "ch-note", role: "status", "aria-live": "polite" });
  const composer = el("form", { class: "ch-composer", onsubmit: (event) => { event.preventDefault(); submit(); } });
  const field = el("textarea", { class: "ch-field", rows: 2, "aria-label": "Message", maxlength: null,
    onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); submit(); }
    }, oninput: grow, onpaste: (event) => { if (tooLong(event.clipboardData?.getData("text") ?? "")) event.preventDefault(); } });
  const main = el("div", { class: "ch-main" }, head, setup, flow, note, composer);
  fill(root, side, main);
  function grow() {
    field.style.height = "auto";
    field.style.height = `${Math.min(field.scrollHeight + 2, 260)}px`;
  }

  /** Say so where a text is longer than the server takes: megabytes never get into the field. */
  function tooLong(text) {
    const most = options?.max_text ?? Infinity, size = text.length > most ? [...text.slice(0, 2 * most + 2)].length : 0;
    if (size <= most) return false;
    trouble = { what: `The message has ${text.length.toLocaleString("en-US")} characters, and at most ${most.toLocaleString("en-US")} are taken.`, fix: "Shorten it." };
    drawNote();
    return true;
  }

  /* ---- Names ---- */
  const runOf = (checkpoint) => options.runs.find((run) => run.run === Number(checkpoint.split(":")[0]));
  const sourceRun = (source) => options.runs.find((run) => `run:${run.run}` === source);
  /** Who plays by default: the base, and the newest checkpoint of the run that the problem is from. */
  function playing({ source, model, checkpoints }) {
    const run = sourceRun(source);
    return run?.model === model && checkpoints.join() === "base" ? ["base", `${run.run}:${run.checkpoints.at(-1)}`] : checkpoints;
  }
  function checkpointName(checkpoint) {
    if (checkpoint === "base") return "base";
    const run = runOf(checkpoint);
    return run ? `${checkpoint} · ${run.name}` : checkpoint;
  }

  /* ---- List ---- */
  async function loadList() {
    const query = new URLSearchParams({ search });
    if (cursor) query.set("cursor", cursor);
    list = await api(`${BASE}/chats?${query}`, { quiet: true });
    drawList();
  }
  const searchField = el("input", { type: "search", placeholder: "Search conversations", "aria-label": "Search conversations", oninput: debounce(() => { search = searchField.value; cursor = null; loadList(); }, 250) });
  const rows = el("div", { class: "ch-list", role: "navigation", "aria-label": "Conversations" });
  const pager = el("div", { class: "rl-row ch-pager" });
  fill(side, el("details", { class: "ch-fold" }, el("summary", {}, "Conversations"), el("div", { class: "ch-fold-in" },
    readOnly ? null : el("a", { class: "rl-button", href: "/chat", onclick: (event) => { if (plain(event)) { event.preventDefault(); fresh({}); } } }, "New chat"), searchField, rows, pager)));
  const fold = side.firstChild, wide = matchMedia("(min-width: 861px)");
  const unfold = () => (fold.open = wide.matches);
  wide.addEventListener("change", unfold);
  unfold();
  function drawList() {
    const here = tree?.chat.id;
    fill(rows, list.rows.map((chat) => el("a", { class: "ch-item", href: rl2f.links.chat(chat.id), "aria-current": chat.id === here ? "page" : null,
      onclick: (event) => { if (plain(event)) { event.preventDefault(); if (!wide.matches) fold.open = false; show(chat.id, null, true); } } },
      el("span", { class: "rl-cut" }, chat.title), el("small", { class: "rl-muted" }, chat.mode === "play" ? "played task · " : "", rl2f.time(chat.changed)))),
      list.rows.length ? null : el("p", { class: "rl-muted rl-small" }, search ? "Nothing found." : "No conversations yet."));
    const step = (mark, sign, label) => el("button", { type: "button", class: "rl-button rl-small", disabled: !mark, "aria-label": label, onclick: () => { cursor = mark; loadList(); } }, sign);
    fill(pager, list.before || list.after ? [step(list.before, "◄", "newer"), step(list.after, "►", "older"), el("span", { class: "rl-muted rl-num" }, `${list.total}`)] : null);
  }

  /* ---- Opening ---- */
  function fresh(query, push = true) {
    close();
    wanted++;
    tree = null; busy = false; trouble = null; status = ""; answer = null;
    const asked = (query.checkpoints ?? "").split(",").filter(Boolean);
    const run = asked.map((s) => s !== "base" && runOf(s)).find(Boolean);
    const model = run?.model ?? ([query.model, sourceRun(query.source)?.model, options.runs[0]?.model].find((m) => options.models.includes(m)) ?? options.models[0]) ?? "";
    const checkpoints = asked.length ? asked.filter((s) => s === "base" || runOf(s)?.model === model) : ["base"];
    const missing = asked.filter((s) => !checkpoints.includes(s));
    const source = query.source ?? (run ? `run:${run.run}` : options.runs[0] ? `run:${options.runs[0].run}` : options.presets[0] ? `preset:${options.presets[0]}` : "");
    if (missing.length) trouble = { what: `${missing.join(", ")} cannot speak here: no such checkpoint, or one of another base model.`, fix: "Choose another below." };
    draft = { mode: query.play ? "play" : "chat", model, checkpoints: checkpoints.length ? checkpoints : ["base"], system: "", device: "auto",
      sampling: Object.fromEntries(Object.entries(options.sampling).map(([name, f]) => [name, f.default])),
      source, split: "test", index: query.index ?? "" };
    if (query.play && !asked.length) draft.checkpoints = playing(draft);
    if (push) rl2f.setQuery({ chat: null, at: null, checkpoints: asked, play: query.play ?? null, source: query.source ?? null, index: query.index ?? null, model: null }, { push: true });
    draw();
    field.focus({ preventScroll: true });
  }
  async function show(id, at = null, push = false) {
    close();
    const turn = ++wanted;
    answer = null; trouble = null; status = "";
    let data;
    try { data = await api(`${BASE}/chats/${encodeURIComponent(id)}`, { quiet: true }); } catch (error) {
      if (turn !== wanted) return;
      tree = null; draft = null;
      fill(head); fill(setup); fill(composer); fill(note);
      fill(flow, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? String(error)), el("p", {}, error.fix ?? ""), el("a", { class: "rl-button", href: "/chat" }, "New chat")));
      return;
    }
    if (turn !== wanted) return;
    take(data, at);
    if (push) rl2f.setQuery({ chat: id, at: null, checkpoints: null, play: null, source: null, index: null, model: null }, { push: true });
    draw();
    if (data.live) follow();
    else if (tree.chat.mode === "play" && !tree.playing().length && !readOnly) begin();
    drawList();
  }
  function take(data, at = null) {
    const before = tree && tree.chat.id === data.chat.id ? tree : null;
    draft = null;
    tree = new Tree(data.chat, data.messages);
    if (before) {  // an answer may have ended before we could follow it: then it is new here, and is shown
      tree.picked = before.picked;
      for (const id of [...tree.all.keys()].sort((a, b) => a - b)) if (!before.all.has(id)) tree.select(id);
    } else if (tree.all.size) tree.select(at && tree.all.has(at) ? at : tree.newest);
    texts.clear();
  }
  async function reload() {
    const turn = wanted, id = tree?.chat.id;
    if (id === undefined) return;
    const data = await api(`${BASE}/chats/${id}`, { quiet: true }).catch(() => null);
    if (data && turn === wanted && tree?.chat.id === id) { take(data); draw(); if (data.live && !stream) follow(); }
  }

  /* ---- Following what is written ---- */
  function close() { stream?.close(); stream = null; busy = false; }
  function follow() {
    close();
    busy = true;
    const id = tree.chat.id, mine = new EventSource(`${BASE}/chats/${id}/stream`);
    stream = mine;
    mine.onmessage = (event) => { if (stream === mine) hear(JSON.parse(event.data)); };
    mine.onerror = () => { if (stream === mine) { setStatus("The server does not answer; the answer goes on there. Trying again …"); } };
    draw();
  }
  function hear(event) {
    if (event.type === "status") { if (status && !event.text) loadModel(); setStatus(event.text); }
    else if (event.type === "message") { const stick = atEnd(); tree.put(event.message); if (event.message.status !== "streaming") texts.delete(event.message.id); redraw(stick); }
    else if (event.type === "text" || event.type === "delta") {
      const text = event.type === "text" ? event.text : (texts.get(event.message) ?? "") + event.text;
      texts.set(event.message, text);
      const node = live.get(event.message);
      if (node?.isConnected) { const stick = atEnd(); if (event.type === "text") node.data = text; else node.appendData(event.text); if (stick) toEnd(); }
    } else if (event.type === "error") {
      const shown = [...tree.all.values()].some((m) => m.detail.error?.what === event.error.what);  // then it stands there
      if (!shown) { trouble = event.error; drawNote(); }
    }
    else if (event.type === "end") { close(); setStatus(""); reload().then(loadList); loadModel(); }
  }
  function setStatus(text) { status = text; drawNote(); }
  let drawing = false;
  function redraw(stick) {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => { drawing = false; drawFlow(); drawComposer(); if (stick) toEnd(); });
  }
  const atEnd = () => innerHeight + scrollY > document.documentElement.scrollHeight - 120;
  const toEnd = () => scrollTo({ top: document.documentElement.scrollHeight });

  /* ---- Acting ---- */
  async function post(path, body = {}) {
    trouble = null;
    try { const data = await api(`${BASE}/${path}`, { body, quiet: true }); return data; } catch (error) {
      trouble = { what: error.what ?? String(error), fix: [error.known ? `Known: ${error.known.join(", ")}.` : "", error.fix ?? ""].filter(Boolean).join(" ") };
      draw();
      return null;
    }
  }
  async function started(promise, after = () => {}) {
    busy = true; drawComposer();
    const data = await promise;
    if (!data) { busy = Boolean(stream); draw(); return null; }
    after(data);
    if (data.turn) { follow(); toEnd(); } else { busy = false; if (data.message) tree.put(data.message); draw(); loadList(); }
    return data;
  }
  async function create() {
    const { mode, index, source, split, ...rest } = draft;
    const body = { ...rest, ...(mode === "play" ? { source, split, index: String(index).trim() === "" ? null : Number(index), sampling: { seed: draft.sampling.seed } } : {}) };
    const data = await post("chats", { settings: body });
    if (!data) return null;
    rl2f.setQuery({ chat: data.chat.id, at: null, checkpoints: null, play: null, source: null, index: null, model: null }, { push: true });
    return data.chat;
  }
  async function submit() {
    if (busy || readOnly || !options) return;
    const text = field.value;
    if (draft?.mode === "play") { busy = true; drawComposer(); const chat = await create(); busy = false; if (chat) await show(chat.id); else draw(); loadList(); return; }
    if (!text.trim()) return;
    if (tooLong(text)) return;
    const clear = () => { field.value = ""; grow(); };
    if (draft) {
      busy = true; drawComposer();
      const chat = await create();
      busy = false;
      if (!chat) { draw(); return; }
      draft = null;
      tree = new Tree(chat, []);
    }
    if (tree.chat.mode === "play") { await hint("person", text, clear); return; }
    const last = tree.turns().at(-1);
    const after = Object.fromEntries([...(last?.answers ?? [])].filter(([checkpoint, m]) => usable(m) && tree.chat.settings.checkpoints.includes(checkpoint)).map(([checkpoint, m]) => [checkpoint, m.id]));
    if (!tree.all.size) tree.chat.title = text.trim().replace(/\s+/g, " ").slice(0, 60);
    await started(post(`chats/${tree.chat.id}/send`, { text, parent: last?.user.id ?? null, after }), () => { clear(); loadList(); });
  }
  const begin = () => started(post(`chats/${tree.chat.id}/play`, {}));
  const waiting = () => tree.playing().map((checkpoint) => [checkpoint, tree.chain(checkpoint).at(-1)]).filter(([checkpoint, m]) => m?.role === "assistant" && m.detail.turn && !m.detail.ended && m.status !== "streaming" && !unhinted.has(checkpoint));
  async function hint(by, text = "", after = () => {}) {
    const targets = Object.fromEntries(waiting().map(([checkpoint, m]) => [checkpoint, m.id]));
    if (!Object.keys(targets).length) { toast("No attempt waits for a hint."); return; }
    await started(post(`chats/${tree.chat.id}/play`, { after: targets, by, text }), after);
  }
  async function stop() { if (busy && tree) { setStatus("Stopping …"); await api(`${BASE}/chats/${tree.chat.id}/stop`, { body: {} }).catch(() => {}); } }
  const again = (m) => started(post(`chats/${tree.chat.id}/messages/${m.id}/regenerate`));
  async function edit(m) {
    const area = el("textarea", { rows: 8, "aria-label": "Text" });
    area.value = m.detail.hint?.original ?? m.content;
    const what = m.role === "assistant" ? (tree.chat.mode === "play" ? "The changed attempt is judged; the original stays beside it." : "The changed answer stands beside the original, and the chat can go on from it.") : "It is answered anew in a branch; the original stays.";
    const chosen = await rl2f.ask({ title: m.role === "assistant" ? "Change the answer" : m.role === "teacher" ? "Another hint" : "Change the message", body: [el("p", {}, what), area], actions: [{ label: "Cancel", value: null }, { label: "Make a branch", value: "ok", kind: "rl-primary" }] });
    if (chosen === "ok") await started(post(`chats/${tree.chat.id}/messages/${m.id}/edit`, { text: area.value }));
  }
  const finish = (m) => started(post(`chats/${tree.chat.id}/messages/${m.id}/finish`));
  async function prefer(one, other, choice) {
    const data = await post(`chats/${tree.chat.id}/prefer`, { one, other, choice });
    if (data) { for (const m of data.messages) tree.all.set(m.id, m); drawFlow(); }
  }
  function go(id) { tree.select(id); rl2f.setQuery({ at: id }); draw(); }
  async function patch(body) {
    try { const data = await api(`${BASE}/chats/${tree.chat.id}`, { method: "PATCH", body, quiet: true }); tree.chat = data.chat; trouble = null; } catch (error) { trouble = { what: error.what, fix: error.fix }; }
    draw();
  }
  async function rename() {
    const name = el("input", { class: "rl-field", "aria-label": "Name", value: tree.chat.title, maxlength: 120, style: { width: "100%" } });
    if (await rl2f.ask({ title: "Rename", body: [name], actions: [{ label: "Cancel", value: null }, { label: "Rename", value: "ok", kind: "rl-primary" }] }) === "ok") { await patch({ title: name.value }); loadList(); }
  }
  async function remove() {
    if (!await rl2f.confirm({ title: "Delete this conversation?", text: `“${tree.chat.title}” and all its branches are removed. Played dialogues that were kept stay.` })) return;
    await api(`${BASE}/chats/${tree.chat.id}`, { method: "DELETE" });
    fresh({});
    loadList();
  }
  async function loadModel() { if (options) { options.model = await api(`${BASE}/model`, { quiet: true }).catch(() => options.model); drawHead(); } }

  /* ---- Settings ---- */
  const held = () => draft ?? tree.chat.settings;
  function put(changes) {
    if (draft) { Object.assign(draft, changes); draw(); } else patch({ settings: changes });
  }
  function checkpointPicker() {
    const now = held(), chosen = now.checkpoints;
    const chips = chosen.map((s) => el("span", { class: "rl-chip ch-chip" }, checkpointName(s), chosen.length > 1 ? el("button", { type: "button", class: "rl-icon", "aria-label": `Remove ${s}`, onclick: () => put({ checkpoints: chosen.filter((x) => x !== s) }) }, "×") : null));
    const runs = options.runs.filter((run) => run.model === now.model);
    const free = chosen.length < options.max_checkpoints;
    const add = el("select", { "aria-label": "Add a checkpoint", disabled: !free, onchange: () => { if (add.value) put({ checkpoints: [...chosen, add.value] }); } },
      el("option", { value: "" }, free ? "+ Add a checkpoint" : `At most ${options.max_checkpoints}`), chosen.includes("base") ? null : el("option", { value: "base" }, "base"),
      runs.map((run) => el("optgroup", { label: `${run.run} · ${run.name} (${run.environment})` }, [...run.checkpoints].reverse().filter((c) => !chosen.includes(`${run.run}:${c}`)).map((c) => el("option", { value: `${run.run}:${c}` }, c)))));
    return el("div", { class: "rl-row", role: "group", "aria-label": "Checkpoints" }, chips, add, runs.length ? null : el("span", { class: "rl-muted rl-small" }, "No run on this model has a checkpoint yet. ", el("a", { href: rl2f.links.fresh() }, "Start one")));
  }
  const LABELS = { max_new_tokens: "Tokens", temperature: "Temperature", top_p: "Top p", seed: "Seed" };
  function samplingFields(names) {
    const now = held();
    return names.map((name) => {
      const f = options.sampling[name], whole = f.type === "integer";
      const input = el("input", { type: "number", class: "rl-field", value: now.sampling[name], min: f.minimum ?? (f.exclusiveMinimum !== undefined ? 0.01 : null), max: f.maximum ?? (f.exclusiveMaximum !== undefined ? f.exclusiveMaximum - 1 : null), step: whole ? 1 : "any", title: f.description,
        onchange: () => { if (input.value === "" || !input.checkValidity()) { input.reportValidity(); return; } put({ sampling: { ...now.sampling, [name]: Number(input.value) } }); } });
      return labelled(LABELS[name] ?? name, input);
    });
  }
  const labelled = (text, node, more = {}) => el("label", { class: "ch-label", ...more }, el("span", {}, text), node);
  const pick = (label, value, choices, change) => { const node = el("select", { "aria-label": label, onchange: () => change(node.value) }, choices.map(([v, t]) => el("option", { value: v, selected: v === value }, t))); return node; };
  const system = () => { const now = held(); const area = el("textarea", { class: "rl-field", rows: 2, placeholder: "none", value: now.system, maxlength: options.max_text, onchange: () => put({ system: area.value }) }); return labelled("System message", area, { class: "ch-label ch-wide" }); };
  function drawSetup() {
    if (!draft) {
      if (!tree) return fill(setup);
      const now = tree.chat.settings, play = tree.chat.mode === "play";
      const box = el("details", { class: "ch-more", open: open.has("settings") }, el("summary", {}, "Settings"),
        el("div", { class: "ch-grid" }, play ? null : el("div", { class: "ch-wide" }, checkpointPicker()), samplingFields(Object.keys(options.sampling)), play ? null : system()));
      box.addEventListener("toggle", () => (box.open ? open.add("settings") : open.delete("settings")));
      return fill(setup, readOnly || busy ? null : box);
    }
    if (!options.models.length) return fill(setup, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "No model is here yet"), el("p", {}, "Fetch the small one with: rl2f models get smollm2-135m"), el("a", { class: "rl-button", href: "/chat" }, "Look again")));
    const play = draft.mode === "play";
    const tab = (mode, text) => el("button", { type: "button", role: "tab", class: "ch-tab", "aria-selected": draft.mode === mode ? "true" : "false", onclick: () => { draft.mode = mode; if (mode === "play") draft.checkpoints = playing(draft); rl2f.setQuery({ play: mode === "play" ? 1 : null }); draw(); } }, text);
    const sources = [...options.runs.map((run) => [`run:${run.run}`, `run ${run.run} · ${run.name} (${run.environment})`]), ...options.presets.map((name) => [`preset:${name}`, `preset ${name}`])];
    fill(setup, el("div", { class: "rl-card ch-card" },
      el("div", { class: "ch-tabs", role: "tablist" }, tab("chat", "Chat"), tab("play", "Play a task")),
      el("p", { class: "rl-muted ch-lead" }, play ? "The environment sets a problem, the checkpoints try, and you or the scripted teacher hint, as in training. The leak guard reads every hint, yours too. Finished dialogues are kept for replay, labels and export."
        : "The base and up to three checkpoints answer side by side, with the same seed and sampling. Judge which is better."),
      el("div", { class: "ch-grid" },
        labelled("Base model", pick("Base model", draft.model, options.models.map((m) => [m, m]), (model) => put({ model, checkpoints: ["base"] }))),
        el("div", { class: "ch-label ch-wide" }, el("span", {}, "Checkpoints"), checkpointPicker()),
        play ? [labelled("Problem from", pick("Problem from", draft.source, sources, (source) => { const run = sourceRun(source); const model = run?.model ?? draft.model; put({ source, model, checkpoints: playing({ source, model, checkpoints: ["base"] }) }); }), { class: "ch-label ch-two" }),
          labelled("Split", pick("Split", draft.split, ["train", "validation", "test"].map((s) => [s, s]), (split) => put({ split }))),
          labelled("Task number", (() => { const input = el("input", { type: "number", class: "rl-field", min: 0, step: 1, placeholder: "random", value: draft.index, onchange: () => { if (input.checkValidity()) { draft.index = input.value; rl2f.setQuery({ index: input.value }); } else input.reportValidity(); } }); return input; })()),
          samplingFields(["seed"])]
          : [samplingFields(Object.keys(options.sampling)), system()])));
  }

  /* ---- Drawing ---- */
  function drawHead() {
    const model = options?.model ?? {};
    const memory = model.running ? el("span", { class: "rl-chip", title: `process ${model.pid}` }, model.model ? `● ${model.model} in memory` : "● model process", readOnly ? null : el("button", { type: "button", class: "rl-icon", title: "Free the memory", "aria-label": "Free the memory", onclick: async () => { await post("model/unload"); loadModel(); } }, "⏏")) : el("span", { class: "rl-chip", title: "It is loaded with the next message and leaves when idle." }, "○ model not in memory");
    if (!tree) return fill(head, draft ? [el("h1", {}, draft.mode === "play" ? "Play a task" : "New chat"), el("span", { class: "rl-grow" }), memory] : null);
    const s = tree.chat.settings, play = tree.chat.mode === "play";
    const facts = [s.model, `seed ${s.sampling.seed}`, `T ${s.sampling.temperature}`, s.sampling.top_p < 1 ? `top p ${s.sampling.top_p}` : null, `${s.sampling.max_new_tokens} tokens`, play ? `${s.max_turns} turns` : null, play ? s.source : null].filter(Boolean).join(" · ");
    const item = (label, run, kind = "") => el("button", { type: "button", class: kind, onclick: (event) => { event.target.closest("details").open = false; run(); } }, label);
    const save = (format) => el("a", { href: `${BASE}/chats/${tree.chat.id}/export?format=${format}`, download: "" }, format === "messages" ? "Export messages (JSONL)" : "Export judgements (JSONL)");
    const open = head.querySelector("details.rl-menu")?.open ?? false;  // drawn again under somebody's hand
    fill(head, el("h1", {}, tree.chat.title), el("span", { class: "rl-muted rl-small" }, facts), el("span", { class: "rl-grow" }), memory,
      el("details", { class: "rl-menu", open }, el("summary", { class: "rl-button rl-small", "aria-label": "More" }, "⋯"), el("div", { class: "rl-menu-items" },
        readOnly ? null : item("Rename", rename), save("messages"), play ? null : save("preference"), item("Copy link", () => navigator.clipboard?.writeText(location.href).then(() => toast("Copied."))), readOnly ? null : item("Delete", remove, "rl-danger"))));
  }
  const page = {
    texts, live, open, unhinted, readOnly, checkpointName, go, edit, again, prefer, finish,
    drawComposer: () => drawComposer(), get tree() { return tree; }, get busy() { return busy; },
    answerLine: () => answer ? el("p", { class: "ch-line" }, el("b", {}, "Answer "), rl2f.transcript.inline(answer.answer, 400), " ", el("button", { type: "button", class: "rl-button rl-quiet rl-small", onclick: () => { answer = null; drawFlow(); } }, "Hide"))
      : el("p", { class: "ch-line" }, el("button", { type: "button", class: "rl-button rl-quiet rl-small", onclick: async () => { answer = await api(`${BASE}/chats/${tree.chat.id}/answer`).catch(() => null); drawFlow(); } }, "Show the answer (hidden from the student)")),
  };
  function drawFlow() {
    live.clear();
    fill(flow, tree ? thread(page) : null);
  }
  function drawNote() {
    fill(note, status ? el("span", { class: "rl-muted" }, status) : null, trouble ? failure(trouble) : null);
  }
  function drawComposer() {
    const button = (label, kind, run, more = {}) => el("button", { type: run ? "button" : "submit", class: `rl-button ${kind}`, onclick: run, ...more }, label);
    if (readOnly) return fill(composer, el("p", { class: "rl-muted" }, "This server is read-only: conversations can be read, not continued."));
    if (!options.models.length && draft) return fill(composer);
    const halt = busy ? button("Stop", "rl-danger", stop, { title: "Ctrl+.", disabled: !stream }) : null;
    if (draft?.mode === "play") return fill(composer, el("div", { class: "rl-row ch-buttons" }, busy ? null : button("Set the problem", "rl-primary"), busy ? el("span", { class: "rl-muted" }, "One moment …") : null));
    if (tree?.chat.mode === "play") {
      const open_ = busy ? [] : waiting(), any = open_.length > 0;
      const over = !busy && !any && tree.playing().length && tree.playing().every((s) => tree.chain(s).at(-1)?.detail.ended);
      const next = el("a", { class: "rl-button rl-primary", href: `/chat?play=1&source=${encodeURIComponent(tree.chat.settings.source)}`, onclick: (event) => { if (plain(event)) { event.preventDefault(); fresh({ play: "1", source: tree.chat.settings.source, checkpoints: tree.chat.settings.checkpoints.join(",") }); } } }, "Play another");
      field.placeholder = any ? `Your hint${open_.length > 1 ? ` for ${open_.length} checkpoints` : ""}; the leak guard reads it first. Enter sends` : "";
      if (!tree.playing().length && !busy) return fill(composer, button("Begin", "rl-primary", begin));
      return fill(composer, over ? el("div", { class: "rl-row ch-buttons" }, next) : [any ? field : null, el("div", { class: "rl-row ch-buttons" }, any ? [button("Send hint", "rl-primary"), button("Scripted hint", "", () => hint("scripted"), { title: "The environment's own teacher hints" })] : null, halt)]);
    }
    field.placeholder = "Write a message. Enter sends, Shift+Enter makes a line";
    fill(composer, field, el("div", { class: "rl-row ch-buttons" }, halt ?? button("Send", "rl-primary")));
  }
  function draw() { main.dataset.draft = draft?.mode ?? ""; drawHead(); drawSetup(); drawFlow(); drawNote(); const held_ = document.activeElement === field; drawComposer(); if (held_) field.focus({ preventScroll: true }); }

  /* ---- Small things ---- */
  const plain = (event) => !(event.ctrlKey || event.metaKey || event.shiftKey || event.button);
  function debounce(run, ms) { let timer = null; return () => { clearTimeout(timer); timer = setTimeout(run, ms); }; }
  keys.add("Chat", [
    { keys: ["Enter"], text: "send", typing: true, run: () => false },
    { keys: ["Shift+Enter"], text: "new line", typing: true, run: () => false },
    { keys: ["Ctrl+."], text: "stop the answer", typing: true, run: () => { if (!busy) return false; stop(); } },
    { keys: ["n"], text: "new chat", run: () => fresh({}) },
    { keys: ["i"], text: "write", run: () => field.focus() },
    { keys: ["h"], text: "scripted hint", run: () => { if (tree?.chat.mode !== "play" || busy) return false; hint("scripted"); } },
  ]);
  function openAddress() {
    const query = rl2f.query();
    if (query.chat) show(query.chat, Number(query.at) || null);
    else fresh(query, false);
  }
  addEventListener("popstate", openAddress);
  (async () => {
    try { options = await api(`${BASE}/options`, { quiet: true }); } catch (error) { fill(main, failure(error)); return; }
    openAddress();
    await loadList();
  })();
});
