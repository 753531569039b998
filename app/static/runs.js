"use strict";
/* Page Runs: cards of what runs, the queue, a filtered list of what ended, schedules, and what the scheduler missed. */
rl2f.widget("runs", (root) => {
  const { el, fill, api, links, time, num, duration, badge, spark, toast, confirm } = rl2f;
  const ACTS = {
    queued: ["stop"], starting: ["stop", "abort"], running: ["stop", "abort"], stopping: ["abort"],
    succeeded: ["delete"], failed: ["resume", "delete"], stopped: ["resume", "delete"], interrupted: ["resume", "delete"],
  };
  const SORTS = [["-ended", "newest ended"], ["-created", "newest made"], ["created", "oldest made"], ["name", "name"], ["environment", "environment"], ["-reward", "highest reward"], ["reward", "lowest reward"]];
  const FILTERS = ["search", "status", "kind", "environment", "method", "tag", "sort", "cursor"];
  const chosen = new Set();
  let state = null, seen = null, here = 0;

  /* ---- Frame ---- */
  const part = (name, title, tools = []) => {
    const body = el("div", { class: "rl-stack" });
    const head = el("h2", {}, title);
    const section = el("section", { class: "rl-stack", dataset: { part: name }, "aria-label": title }, el("div", { class: "rl-row" }, head, tools), body);
    return { section, body, head, drawn: null };
  };
  const pauseButton = el("button", { type: "button", class: "rl-button rl-small", onclick: () => act(() => api("/api/runs/queue", { body: { on: state.paused } })) });
  const slotsText = el("span", { class: "rl-muted rl-small" });
  const parts = {
    running: part("running", "Running"),
    queue: part("queue", "Queue", [pauseButton, slotsText]),
    list: part("list", "Ended"),
    schedules: part("schedules", "Schedules"),
    trouble: part("trouble", "Missed and failed jobs"),
  };
  const hint = el("div", {});
  const search = el("input", { type: "search", placeholder: "Search name, tag, note, model…", "aria-label": "Search runs", dataset: { rlSearch: "" }, class: "rl-grow runs-search" });
  const selects = {};
  const select = (name, label) => (selects[name] = el("select", { "aria-label": label, onchange: (e) => filter({ [name]: e.target.value }) }));
  const bulk = el("div", { class: "rl-row runs-bulk", hidden: true });
  const pager = el("div", { class: "rl-row runs-pager" });
  parts.list.section.insertBefore(
    el("div", { class: "rl-row runs-filters" }, search, select("status", "Status"), select("kind", "Kind"), select("environment", "Environment"), select("method", "Method"), select("tag", "Tag"), select("sort", "Order")),
    parts.list.body);
  parts.list.section.insertBefore(bulk, parts.list.body);
  parts.list.section.append(pager);
  const ready = () => {
    if (root.dataset.ready) return;
    root.dataset.ready = "1";
    fill(root, el("div", { class: "rl-head" }, el("h1", {}, "Runs"), el("span", { class: "rl-grow" }), rl2f.readOnly ? null : el("a", { class: "rl-button rl-primary", href: links.fresh() }, "New run")),
      hint, Object.values(parts).map((p) => p.section));
  };

  /* ---- Address ---- */
  const asked = () => {
    const q = rl2f.query();
    return Object.fromEntries(FILTERS.filter((name) => q[name]).map((name) => [name, q[name]]));
  };
  const filter = (changes) => { rl2f.setQuery({ cursor: null, ...changes }); here = 0; refresh(); };
  let wait = null;
  search.addEventListener("input", () => { clearTimeout(wait); wait = setTimeout(() => filter({ search: search.value.trim() }), 250); });
  addEventListener("popstate", () => refresh());

  /* ---- Server ---- */
  let asking = 0;
  async function load(force = false) {
    const params = new URLSearchParams(asked());
    const key = params.toString();
    if (!force && state && seen === key) params.set("since", state.version);
    const mine = ++asking;
    let fresh;
    try {
      fresh = await api(`/api/runs?${params}`, { quiet: true });
    } catch (error) {
      if (error.status === 400 && key) { toast(error); rl2f.setQuery(Object.fromEntries(FILTERS.map((n) => [n, null]))); }
      else if (error.status !== 0 && !state) { ready(); fill(hint, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? "The runs cannot be shown."), el("p", {}, error.fix ?? ""))); }
      throw error;
    }
    if (mine !== asking || fresh.unchanged) return;
    state = fresh;
    seen = key;
    draw();
  }
  const poll = rl2f.poll(() => load(), 2000);
  const refresh = () => { seen = null; poll.now(); };
  async function act(call, said = null) {
    try { const done = await call(); if (said) toast(said); return done; } catch { return null; } finally { refresh(); }
  }

  /* ---- What can be done ---- */
  const WORDS = { stop: "Stop", abort: "Abort", resume: "Resume", delete: "Delete" };
  async function run_act(run, name) {
    if (name === "abort" && !(await confirm({ title: `Abort ${run.name}?`, text: "It ends at once. Steps since its last save are lost; it can be resumed from there.", action: "Abort" }))) return;
    if (name === "delete") return remove([run]);
    const said = { stop: run.status === "queued" ? `${run.name} left the queue.` : `${run.name} stops after its step and saves.`, abort: `${run.name} is being ended.`, resume: `${run.name} waits in the queue.` }[name];
    await act(() => api(`/api/runs/${run.id}/${name}`, { method: "POST" }), said);
  }
  async function remove(list) {
    const one = list.length === 1;
    const sure = await confirm({ title: one ? `Delete ${list[0].name}?` : `Delete ${list.length} runs?`, text: `${one ? "The run" : "The runs"} with all dialogues, labels, notes and checkpoints go. The files stay in the workspace's trash for a while.` });
    if (!sure) return;
    const done = await act(() => api("/api/runs/delete", { body: { ids: list.map((r) => r.id) } }));
    if (!done) return;
    for (const id of done.deleted) chosen.delete(id);
    if (done.deleted.length) toast(done.deleted.length === 1 ? "1 run was deleted." : `${done.deleted.length} runs were deleted.`);
    for (const item of done.kept) toast(item.why, { kind: "error", ms: 12000 });
  }
  const menu = (run) => el("details", { class: "rl-menu" },
    el("summary", { class: "rl-icon", "aria-label": `Actions of ${run.name}`, title: "Actions" }, "⋯"),
    el("div", { class: "rl-menu-items" },
      el("a", { href: links.run(run.id) }, "Open"), el("a", { href: links.dialogues({ run: run.id }) }, "Dialogues"),
      rl2f.readOnly ? null : [
        el("a", { href: links.fresh(null, run.id) }, "Clone"),
        el("button", { type: "button", onclick: (e) => { e.target.closest("details").open = false; annotate(run); } }, "Tags and notes…"),
        (ACTS[run.status] ?? []).map((name) => el("button", { type: "button", class: name === "delete" || name === "abort" ? "rl-danger" : null, onclick: (e) => { e.target.closest("details").open = false; run_act(run, name); } }, name === "delete" ? "Delete…" : run.status === "queued" ? "Remove from queue" : WORDS[name])),
      ]));
  async function annotate(run) {
    const held = await api(`/api/runs/${run.id}/notes`);
    const field = el("input", { class: "rl-field", style: { width: "100%" }, value: held.tags.join(", "), list: "runs-tags", "aria-label": "Tags" });
    const words = el("datalist", { id: "runs-tags" }, state.tags.map((tag) => el("option", { value: tag })));
    const text = el("textarea", { placeholder: "A new note", "aria-label": "A new note" });
    const list = el("div", { class: "rl-stack" }, held.notes.map((note) => {
      const line = el("div", { class: "rl-row" }, el("div", { class: "rl-grow" }, el("div", { class: "runs-note" }, note.text), el("small", { class: "rl-muted" }, time(note.time))),
        el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: async () => { await api(`/api/runs/${run.id}/notes/${note.id}`, { method: "DELETE" }); line.remove(); } }, "Delete"));
      return line;
    }));
    const save = await rl2f.ask({
      title: `Tags and notes of ${run.name}`,
      body: [el("label", {}, "Tags, with commas between them"), field, words, el("label", {}, "Notes"), list, text],
      actions: [{ label: "Cancel", value: false }, { label: "Save", value: true, kind: "rl-primary" }],
    });
    if (!save) { refresh(); return; }
    await act(async () => {
      await api(`/api/runs/${run.id}/tags`, { method: "PUT", body: { tags: field.value.split(",").map((t) => t.trim()).filter(Boolean) } });
      if (text.value.trim()) await api(`/api/runs/${run.id}/notes`, { body: { text: text.value } });
    });
  }

  /* ---- Drawing: a part is drawn again only where its data moved and nobody has a menu of it open ---- */
  function redraw(p, key, build) {
    const text = JSON.stringify(key);
    if (p.drawn === text) return;
    if (p.drawn !== null && p.body.querySelector("details.rl-menu[open]")) return;
    p.drawn = text;
    fill(p.body, build());
  }
  const about = (run) => [run.environment, run.method || run.kind, run.model].filter(Boolean).join(" · ");
  const marks = (run) => [
    run.origin === "example" ? el("span", { class: "rl-chip" }, "example") : null,
    run.origin?.startsWith("schedule:") ? el("span", { class: "rl-chip", title: run.origin }, "scheduled") : null,
    run.tags.map((tag) => el("button", { type: "button", class: "rl-chip runs-tag", title: `Show runs tagged ${tag}`, onclick: () => filter({ tag }) }, `#${tag}`)),
  ];

  const cards = new Map();
  function draw_running() {
    const p = parts.running;
    p.section.hidden = !state.active.length;
    if (!p.grid) fill(p.body, (p.grid = el("div", { class: "rl-cards" })));
    for (const [id, card] of cards) if (!state.active.some((run) => run.id === id)) { card.node.remove(); cards.delete(id); }
    for (const run of state.active) {
      if (!cards.has(run.id)) { const card = make_card(run); cards.set(run.id, card); p.grid.append(card.node); }
      cards.get(run.id).update(run);
    }
  }
  function make_card(first) {
    let run = first;
    const slot = () => el("span", {});
    const status = slot(), name = el("a", { class: "rl-grow rl-cut runs-name" }), info = el("div", { class: "rl-muted rl-small rl-cut" }), actions = slot();
    const fillBar = el("i", {}), bar = el("div", { class: "rl-progress", role: "progressbar", "aria-label": "Progress" }, fillBar);
    const line = el("div", { class: "rl-row rl-small rl-num" }), stats = el("div", { class: "runs-stats" }), graph = el("div", { class: "runs-graph" });
    const stop = el("button", { type: "button", class: "rl-button rl-small", onclick: () => run_act(run, "stop") }, "Stop");
    const abort = el("button", { type: "button", class: "rl-button rl-small rl-danger", onclick: () => run_act(run, "abort") }, "Abort");
    const node = el("article", { class: "rl-card rl-stack", dataset: { run: run.id } },
      el("div", { class: "rl-row runs-line" }, status, name, rl2f.readOnly ? null : [stop, abort], actions), info, bar, line, el("div", { class: "rl-row runs-line" }, stats, graph));
    const stat = (value, label) => el("div", { class: "rl-stat" }, el("b", {}, value), el("span", {}, label));
    return {
      node,
      update(now) {
        const again = JSON.stringify(now) !== JSON.stringify(run) || !name.textContent;
        run = now;
        if (!again) return;
        fill(status, badge(run.status, run.detail));
        name.textContent = run.name; name.href = links.run(run.id); name.title = run.name;
        info.textContent = about(run);
        if (!actions.querySelector("details[open]")) fill(actions, menu(run));
        const known = run.total > 0;
        const share = known ? Math.min(1, run.done / run.total) : 0;
        bar.toggleAttribute("data-unknown", !known);
        fillBar.style.width = known ? `${(share * 100).toFixed(1)}%` : "";
        if (known) { bar.setAttribute("aria-valuenow", Math.round(share * 100)); bar.setAttribute("aria-valuemax", 100); }
        const silent = run.heartbeat && state.now - run.heartbeat > 60;
        fill(line, el("span", {}, known ? `${run.kind === "train" ? "step " : ""}${num(run.done)}/${num(run.total)}` : "starting"), run.phase ? el("span", { class: "rl-muted" }, run.phase) : null,
          el("span", { class: "rl-grow" }), silent ? el("span", { class: "rl-leak" }, "! no word since ", time(run.heartbeat)) : run.eta !== null ? el("span", {}, `ETA ${duration(run.eta)}`) : null);
        fill(stats, run.reward === null ? null : stat(num(run.reward), "reward"), stat(run.tokens_per_second ? num(run.tokens_per_second) : "–", "tokens/s"), stat(run.started ? duration(state.now - run.started) : "–", "elapsed"));
        fill(graph, spark(run.spark, { width: 130, height: 36 }));
        stop.hidden = !(ACTS[run.status] ?? []).includes("stop");
      },
    };
  }

  function draw_queue() {
    const p = parts.queue;
    p.section.hidden = !state.waiting && !state.paused;
    pauseButton.textContent = state.paused ? "Start the queue again" : "Pause the queue";
    pauseButton.hidden = rl2f.readOnly;
    const s = state.slots;
    slotsText.textContent = s.error ?? `${s.cpu} at once on the processor${s.cuda.length ? `, ${s.cuda.length} on GPUs` : ""}`;
    redraw(p, [state.queue, state.waiting, state.paused], () => {
      if (!state.waiting) return el("p", { class: "rl-muted" }, "The queue is paused and empty. What you start waits until it goes on.");
      const ids = state.queue.map((run) => run.id);
      return [
        state.paused ? el("div", { class: "rl-card rl-leak", role: "status" }, "The queue is paused: nothing new starts. What runs goes on.") : null,
        el("div", { class: "rl-card runs-table" }, el("table", { class: "rl-table" },
          el("tbody", {}, state.queue.map((run, i) => el("tr", { dataset: { run: run.id } },
            el("td", { class: "rl-num rl-muted runs-at" }, String(i + 1)),
            el("td", { class: "runs-main" }, el("a", { href: links.run(run.id) }, run.name), " ", marks(run), el("div", { class: "rl-muted rl-small" }, about(run))),
            el("td", { class: "rl-muted rl-small runs-when" }, "added ", time(run.created)),
            el("td", { class: "runs-tools" }, rl2f.readOnly ? null : [
              el("button", { type: "button", class: "rl-icon", disabled: i === 0, title: "Up", "aria-label": `Move ${run.name} up`, onclick: () => move(run, ids[i - 1]) }, "↑"),
              el("button", { type: "button", class: "rl-icon", disabled: i === ids.length - 1, title: "Down", "aria-label": `Move ${run.name} down`, onclick: () => move(run, ids[i + 2] ?? null) }, "↓"),
              el("button", { type: "button", class: "rl-icon", title: "Remove from the queue", "aria-label": `Remove ${run.name} from the queue`, onclick: () => run_act(run, "stop") }, "×")], menu(run))))))),
        state.waiting > state.queue.length ? el("p", { class: "rl-muted" }, `and ${state.waiting - state.queue.length} more`) : null,
      ];
    });
  }
  const move = (run, before) => act(() => api(`/api/runs/${run.id}/move`, { body: { before } }));

  /* ---- The list ---- */
  const FIELDS = { status: ["", "any that ended"], kind: ["", "any kind"], environment: ["", "any environment"], method: ["", "any method"], tag: ["", "any tag"] };
  function draw_filters() {
    const q = asked(), f = state.facets;
    if (document.activeElement !== search) search.value = q.search ?? "";
    const options = {
      status: [["succeeded", "succeeded"], ["failed", "failed"], ["stopped", "stopped"], ["interrupted", "interrupted"], ["any", "any status"]],
      kind: f.kinds.map((v) => [v, v]), environment: f.environments.map((v) => [v, v]), method: f.methods.map((v) => [v, v]), tag: state.tags.map((v) => [v, `#${v}`]),
    };
    for (const [name, list] of Object.entries(options)) {
      const all = [FIELDS[name], ...list];
      if (q[name] && !all.some(([v]) => v === q[name])) all.push([q[name], q[name]]);
      set_options(selects[name], all, q[name] ?? "");
      selects[name].hidden = list.length < 2 && !q[name] && name !== "status";
    }
    set_options(selects.sort, SORTS, q.sort ?? "-ended");
  }
  function set_options(node, list, value) {
    const key = JSON.stringify(list);
    if (node.dataset.key !== key) { node.dataset.key = key; fill(node, list.map(([v, label]) => el("option", { value: v }, label))); }
    if (document.activeElement !== node || node.value !== value) node.value = value;
  }
  function draw_list() {
    draw_filters();
    const { page } = state, q = asked();
    const filtered = FILTERS.some((name) => q[name] && name !== "sort" && name !== "cursor");
    parts.list.head.textContent = q.status === "any" ? "All runs" : "Ended";
    const none = !page.rows.length && !filtered;
    parts.list.section.hidden = none && !state.active.length && !state.waiting;
    redraw(parts.list, [page, filtered], () => {
      if (!page.rows.length) return el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, filtered ? "No run fits these filters" : "No run has ended yet"),
        filtered ? el("p", { class: "rl-actions" }, el("button", { type: "button", class: "rl-button", onclick: () => { search.value = ""; filter(Object.fromEntries(FILTERS.map((n) => [n, null]))); } }, "Clear the filters")) : null);
      const all = el("input", { type: "checkbox", "aria-label": "Choose all of this page", onchange: (e) => { for (const run of page.rows) e.target.checked ? chosen.add(run.id) : chosen.delete(run.id); parts.list.drawn = null; draw_list(); } });
      all.checked = page.rows.every((run) => chosen.has(run.id));
      return el("div", { class: "rl-card runs-table" }, el("table", { class: "rl-table" },
        el("thead", {}, el("tr", {}, el("th", {}, all), ["Status", "Run", "Environment", "Method", "Model"].map((h) => el("th", {}, h)), ["Reward", "", "Steps", "Took"].map((h) => el("th", { class: "rl-num" }, h)), el("th", {}, "Ended"), el("th", {}))),
        el("tbody", {}, page.rows.map(row))));
    });
    draw_bulk();
    mark();
    const last = page.first + page.rows.length - 1;
    fill(pager, page.rows.length ? el("span", { class: "rl-muted rl-small rl-num" }, `${page.first}–${last} of ${num(page.total)}`) : null,
      page.before || page.after ? [
        el("button", { type: "button", class: "rl-button rl-small", disabled: !page.before, onclick: () => turn(page.before) }, "◄ Earlier page"),
        el("button", { type: "button", class: "rl-button rl-small", disabled: !page.after, onclick: () => turn(page.after) }, "Next page ►")] : null);
  }
  const turn = (cursor) => { rl2f.setQuery({ cursor }, { push: true }); here = 0; refresh(); };
  const steps = (run) => (run.total ? `${num(run.done)}/${num(run.total)}` : "–");
  const took = (run) => (run.started && run.ended ? duration(run.ended - run.started) : "–");
  function row(run) {
    const box = el("input", { type: "checkbox", checked: chosen.has(run.id), "aria-label": `Choose ${run.name}`, onchange: (e) => { e.target.checked ? chosen.add(run.id) : chosen.delete(run.id); draw_bulk(); } });
    return el("tr", { dataset: { run: run.id } },
      el("td", { class: "runs-box" }, box),
      el("td", { class: "runs-status" }, badge(run.status, run.detail)),
      el("td", { class: "runs-main" }, el("a", { href: links.run(run.id), class: "runs-name" }, run.name), " ", el("span", { class: "rl-muted rl-small rl-num" }, `#${run.id}`), " ", marks(run),
        ["queued", "failed", "interrupted"].includes(run.status) && run.detail ? el("div", { class: "rl-small rl-muted runs-note", title: run.detail }, run.detail) : null,
        run.note ? el("div", { class: "rl-small rl-muted runs-note", title: run.note }, `✎ ${run.note}`, run.notes > 1 ? ` (+${run.notes - 1})` : "") : null),
      el("td", { class: "runs-wide" }, run.environment), el("td", { class: "runs-wide" }, run.kind === "train" ? run.method : run.kind), el("td", { class: "runs-wide rl-muted" }, run.model),
      el("td", { class: "rl-num runs-reward" }, num(run.reward)), el("td", { class: "runs-spark" }, spark(run.spark, { width: 84, height: 22 })),
      el("td", { class: "rl-num runs-wide" }, steps(run)), el("td", { class: "rl-num runs-wide" }, took(run)), el("td", { class: "rl-muted runs-when" }, time(run.ended ?? run.created)),
      el("td", { class: "runs-tools" }, menu(run)));
  }
  function draw_bulk() {
    const list = state.page.rows.filter((run) => chosen.has(run.id));
    const ids = [...chosen];
    bulk.hidden = !ids.length;
    const can = (name) => list.filter((run) => (ACTS[run.status] ?? []).includes(name));
    fill(bulk, el("b", {}, `${ids.length} chosen`),
      el("a", { class: "rl-button rl-small", href: links.compare(ids), "aria-disabled": ids.length < 2 ? "true" : null }, "Compare"),
      rl2f.readOnly ? null : [
        can("resume").length ? el("button", { type: "button", class: "rl-button rl-small", onclick: async () => { for (const run of can("resume")) await act(() => api(`/api/runs/${run.id}/resume`, { method: "POST" })); } }, `Resume ${can("resume").length}`) : null,
        can("delete").length ? el("button", { type: "button", class: "rl-button rl-small rl-danger", onclick: () => remove(can("delete")) }, `Delete ${can("delete").length}…`) : null],
      el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: () => { chosen.clear(); parts.list.drawn = null; draw_list(); } }, "Choose none"));
  }

  /* ---- Schedules and trouble ---- */
  const every = (s) => (s.trigger === "at" ? `once, at ${s.when}` : s.trigger === "nightly" ? `evaluates the newest checkpoint, ${s.when}` : s.when) + (s.timezone === "UTC" ? " UTC" : ` ${s.timezone}`);
  function draw_schedules() {
    const p = parts.schedules;
    p.section.hidden = !state.schedules.length;
    redraw(p, state.schedules, () => el("div", { class: "rl-card runs-table" }, el("table", { class: "rl-table" },
      el("thead", {}, el("tr", {}, ["On", "Schedule", "Next", "Last", ""].map((h) => el("th", {}, h)))),
      el("tbody", {}, state.schedules.map((s) => el("tr", { dataset: { schedule: s.id } },
        el("td", { class: "runs-box" }, el("input", { type: "checkbox", checked: s.enabled, disabled: rl2f.readOnly, "aria-label": `${s.name} is on`, onchange: (e) => { p.drawn = null; act(() => api(`/api/runs/schedules/${s.id}`, { method: "PUT", body: { on: e.target.checked } })); } })),
        el("td", { class: "runs-main" }, s.name, el("div", { class: "rl-muted rl-small rl-mono" }, every(s))),
        el("td", {}, s.next_run ? time(s.next_run) : el("span", { class: "rl-muted" }, s.enabled ? "never" : "off")),
        el("td", { class: "rl-muted" }, s.last_run ? time(s.last_run) : "–"),
        el("td", { class: "runs-tools" }, rl2f.readOnly ? null : el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: async () => {
          if (await confirm({ title: `Delete the schedule ${s.name}?`, text: "Runs that it made stay." })) await act(() => api(`/api/runs/schedules/${s.id}`, { method: "DELETE" }));
        } }, "Delete…")))))))); 
  }
  function draw_trouble() {
    const p = parts.trouble;
    p.section.hidden = !state.trouble.length;
    redraw(p, state.trouble, () => el("div", { class: "rl-card runs-table" }, el("table", { class: "rl-table" },
      el("tbody", {}, state.trouble.map((line) => el("tr", {}, el("td", { class: "rl-muted runs-when" }, time(line.time)), el("td", {}, el("span", { class: line.outcome === "failed" ? "rl-wrong" : "rl-leak" }, line.outcome === "failed" ? "✗ failed" : "! missed")), el("td", {}, line.job), el("td", { class: "runs-main rl-muted" }, el("div", { class: "runs-note" }, line.detail))))))));
  }
  function draw_hint() {
    const all = [...state.active, ...state.queue, ...state.page.rows];
    const example = state.page.rows.find((run) => run.origin === "example");
    const filtered = Object.keys(asked()).length > 0;
    let node = null;
    if (!all.length && !filtered) {
      node = el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "No runs yet"),
        el("p", {}, "A run trains a student with a teacher's hints, or evaluates one. The quickstart takes some minutes on two cores."),
        rl2f.readOnly ? null : el("p", { class: "rl-actions" }, el("a", { class: "rl-button rl-primary", href: links.fresh("quickstart") }, "Start the quickstart")));
    } else if (example && !filtered && all.every((run) => run.origin === "example")) {
      node = el("div", { class: "rl-card rl-row runs-hello" }, el("div", { class: "rl-grow" }, el("b", {}, "Welcome. "), "A recorded example lies here to look at: its curves, and every dialogue turn by turn."),
        el("a", { class: "rl-button", href: links.run(example.id) }, "See its curves"), el("a", { class: "rl-button", href: links.dialogues({ run: example.id }) }, "Read its dialogues"),
        rl2f.readOnly ? null : el("a", { class: "rl-button rl-primary", href: links.fresh("quickstart") }, "Start your own"));
    }
    fill(hint, node);
    hint.hidden = !node;
  }
  function draw() {
    ready();
    draw_hint(); draw_running(); draw_queue(); draw_list(); draw_schedules(); draw_trouble();
    const running = state.active.length;
    rl2f.title = `${running ? `(${running}) ` : ""}Runs · RL2F Studio`;
    document.title = rl2f.title;
  }

  /* ---- Keys ---- */
  const rows = () => [...parts.list.body.querySelectorAll("tbody tr")];
  function mark() { rows().forEach((node, i) => node.toggleAttribute("data-here", i === here - 1)); }
  function step(by) {
    const all = rows();
    if (!all.length) return false;
    here = Math.min(all.length, Math.max(1, here + by));
    mark();
    all[here - 1].scrollIntoView({ block: "nearest" });
  }
  const current = () => state?.page.rows[here - 1];
  rl2f.keys.add("Runs", [
    { keys: ["j", "ArrowDown"], text: "next run", run: () => step(1) },
    { keys: ["k", "ArrowUp"], text: "previous run", run: () => step(-1) },
    { keys: ["Enter", "o"], text: "open the run", run: (e) => { if (!current() || e.target.closest?.("a, button, summary")) return false; location.href = links.run(current().id); } },
    { keys: ["d"], text: "its dialogues", run: () => { if (!current()) return false; location.href = links.dialogues({ run: current().id }); } },
    { keys: ["x"], text: "choose the run", run: () => { if (!current()) return false; rows()[here - 1].querySelector("input").click(); } },
    { keys: ["v"], text: "compare the chosen", run: () => { if (chosen.size < 2) return false; location.href = links.compare([...chosen]); } },
    { keys: ["n"], text: "new run", run: () => { location.href = links.fresh(); } },
  ]);
});
