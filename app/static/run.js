"use strict";
/* Page Run. What it shows stands in the address: run, x, smooth, and the further series (`more`). */
(() => {
  const { el, fill, query, setQuery, links, api, badge, time, duration, num, Failure } = rl2f;
  const ACTIVE = new Set(["queued", "starting", "running", "stopping"]);
  const X = [["step", "steps"], ["tokens", "sampled tokens"], ["time", "time"]];
  const FAST = 2000, SLOW = 10000, MORE = 24;

  rl2f.widget("run", (node) => {
    const asked = query().run;
    if (asked === undefined || asked === "") return choose(node);
    const id = Number(asked);
    if (!Number.isInteger(id) || id < 1) return gone(node, `“${asked}” is not the number of a run.`);
    new RunPage(node, id).begin();
  });

  /* ---- Pages without a run ---- */
  function gone(node, what, fix = "It may have been deleted, or the link is wrong.") {
    fill(node, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, what), el("p", {}, fix),
      el("p", { class: "rl-actions" }, el("a", { class: "rl-button rl-primary", href: links.runs() }, "All runs"))));
  }
  async function choose(node) {
    let runs = [];
    try { ({ runs } = await api("/api/compare/runs")); } catch { return; }
    if (!runs.length) {
      return fill(node, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "There is no run yet."), el("p", {}, "Start one, then watch it here."),
        el("p", { class: "rl-actions" }, el("a", { class: "rl-button rl-primary", href: links.fresh() }, "New run"))));
    }
    fill(node, el("div", { class: "rl-head" }, el("h1", {}, "Which run?")),
      el("div", { class: "rl-card rl-scroll" }, el("table", { class: "rl-table" },
        el("tbody", {}, runs.map((run) => el("tr", {},
          el("td", { class: "rl-num" }, String(run.id)), el("td", {}, el("a", { href: links.run(run.id) }, run.name)),
          el("td", {}, badge(run.status)), el("td", { class: "rl-muted" }, [run.environment, run.method].filter(Boolean).join(" · ")),
          el("td", { class: "rl-muted" }, time(run.created))))))));
  }

  class RunPage {
    constructor(node, id) {
      Object.assign(this, { node, id, base: `/api/run/${id}`, seen: null, steps: null, evaluated: undefined, catalogue: null, settings: null });
      const { x, smooth, more } = query();
      this.x = X.some(([key]) => key === x) ? x : "step";
      const weight = smooth === undefined || smooth === "" ? 0.6 : Number(smooth);
      this.smooth = weight >= 0 && weight <= 0.99 ? weight : 0.6;
      this.more = (more ?? "").split(",").filter(Boolean);
    }

    async begin() {
      this.build();
      this.polling = rl2f.poll(() => this.refresh(), FAST);
      rl2f.keys.add("Run", [{ keys: ["d"], text: "dialogues of this run", run: () => { location.href = links.dialogues({ run: this.id }); } }]);
    }

    build() {
      const url = this.node.dataset.plotly;
      const toDialogues = (at) => { location.href = this.pointUrl(at); };
      this.overview = new rl2f.charts.Grid(url, { onPoint: toDialogues });
      this.further = new rl2f.charts.Grid(url, { onPoint: toDialogues, onClose: (key) => this.toggle(key) });
      this.accuracy = new rl2f.charts.Grid(url, { onPoint: ([checkpoint, control]) => { location.href = rl2f.evaluation.dialoguesOf(this.id)(checkpoint, control); } });
      this.head = el("div", { class: "rl-stack" });
      this.buttonsState = this.peopleState = null;
      this.glance = el("div", { class: "rl-glance" });
      this.chartsNote = el("p", { class: "rl-muted rl-small", style: { margin: 0 } });
      this.chartsEmpty = el("div");
      this.evaluationBox = el("section", { class: "rl-section", hidden: true });
      this.sides = el("div", { class: "rl-two" });
      this.charts = el("section", { class: "rl-section" }, el("h2", {}, "Curves"), this.tools(), this.chartsNote, this.chartsEmpty, this.overview.node, this.further.node);
      fill(this.node, this.head, this.glance, this.charts, this.sides, this.evaluationBox,
        this.fold("Config", "config", (box) => this.showConfig(box)),
        this.fold("Environment", "environment", (box) => this.showEnvironment(box)),
        this.fold("Log", "log", (box, details) => this.showLog(box, details)),
        this.people = el("section", { class: "rl-card rl-section" }));
    }

    /* ---- Refresh: only where the version moved ---- */
    async refresh() {
      if (this.over || (this.wait && Date.now() < this.wait)) return;
      try {
        const { version } = await api(`${this.base}/version`, { quiet: true });
        if (version !== this.seen) {
          const data = await api(this.base, { quiet: true });
          if (this.broken) { this.broken = false; this.steps = this.settings = null; this.evaluated = undefined; this.build(); }
          this.seen = data.run.version;
          this.show(data);
        }
        this.wait = ACTIVE.has(this.data.run.status) ? 0 : Date.now() + SLOW;
      } catch (error) {
        if (error instanceof Failure && error.status === 404) return this.lost(error);
        if (error instanceof Failure && error.status === 0) return;
        if (!this.data && error instanceof Failure) {
          gone(this.node, error.what, error.fix ?? "");
          this.broken = true;  // the next answer builds the page again
          if (error.status === 400) this.end();
        }
        throw error;
      }
    }
    now() { this.wait = 0; this.seen = null; this.polling.now(); }
    lost(error) { gone(this.node, this.data ? `Run ${this.id} was deleted.` : error.what, error.fix ?? ""); this.end(); }
    end() { this.over = true; this.polling.stop(); }

    show(data) {
      this.data = data;
      const { run } = data;
      rl2f.title = document.title = `${run.name} · run ${run.id} · RL2F Studio`;
      this.showHead();
      this.showGlance();
      this.showSides();
      this.showPeople();
      if (this.steps !== data.steps || this.settings !== this.wanted()) { this.steps = data.steps; this.loadCharts(); }
      if (!this.shown && !["train", "eval", "levels"].includes(run.kind)) this.node.querySelector("[data-fold=log]").open = true;  // its words are all there is
      this.shown = true;
      const evaluated = JSON.stringify(data.evaluated);
      if (this.evaluated !== evaluated) { this.evaluated = evaluated; this.loadEvaluation(); }
    }

    /* ---- Head ---- */
    showHead() {
      const { run, acts, teacher } = this.data;
      const model = run.model.split("/").filter(Boolean).at(-1) ?? "";
      const active = ACTIVE.has(run.status);
      const progress = run.total ? `step ${num(run.done, 0)}/${num(run.total, 0)}` : run.phase;
      const eta = active && run.eta !== null ? el("span", { class: "rl-num" }, `ETA ${duration(run.eta)}`) : null;
      const took = !active && run.started && run.ended ? el("span", { class: "rl-muted rl-num", title: new Date(run.ended * 1000).toLocaleString() }, "ended ", time(run.ended), `, took ${duration(run.ended - run.started)}`) : null;
      const button = (act, label, title, kind = "") => acts.includes(act)
        ? el("button", { type: "button", class: `rl-button rl-small ${kind}`, title, dataset: { act }, disabled: rl2f.readOnly, onclick: () => this.act(act) }, label) : null;
      const state = JSON.stringify([acts, run.status, run.sessions > 0]);
      if (this.buttonsState !== state) {  // a button that is being pressed must not be replaced under the pointer
        this.buttonsState = state;
        this.buttons = el("span", { class: "rl-row" },
          button("stop", run.status === "queued" ? "Take out of the queue" : "Stop", "Ends after this step and saves"),
          button("abort", "Abort", "Ends at once; what was not committed is lost", "rl-danger"),
          button("resume", run.sessions ? "Resume" : "Start", "Goes on from its last commit", "rl-primary"),
          run.kind === "fork" ? el("a", { class: "rl-button rl-small rl-primary", href: links.fork(null, null, null, { fork: run.id }), title: "What came of it" }, "Open the fork") : null,
          run.kind === "hint_value" && run.parent ? el("a", { class: "rl-button rl-small rl-primary", href: links.dialogues({ run: run.parent, order: "-worth" }), title: "The dialogues by what their hints were worth" }, "Hints by worth") : null,
          el("a", { class: "rl-button rl-small", href: links.fresh(null, run.id), title: "A new run with this configuration" }, "Clone"),
          el("a", { class: "rl-button rl-small", href: links.dialogues({ run: run.id }) }, "Dialogues"),
          el("a", { class: "rl-button rl-small", href: links.compare([run.id]) }, "Compare"),
          el("a", { class: "rl-button rl-small", href: `/exports?run=${run.id}`, title: "Its dialogues as data sets" }, "Export"),
          button("delete", "Delete", "Deletes the run and its files", "rl-danger"));
        this.state = el("span", { class: "rl-row" });
        this.title = el("div", { class: "rl-stack" });
        this.notices = el("div", { class: "rl-stack" });
        fill(this.head, el("div", { class: "rl-head" }, this.title, el("div", { class: "rl-run-state" }, this.state, this.buttons)), this.notices);
      }
      const parent = run.parent ? el("a", { href: links.run(run.parent) }, `from run ${run.parent}`) : null;
      fill(this.title, el("div", { class: "rl-row" }, el("h1", { title: run.folder }, run.name),
        el("div", { class: "rl-run-facts" }, [`run ${run.id}`, run.kind === "train" ? null : run.kind, run.environment, run.method].filter(Boolean).map((text) => el("span", {}, text)),
          model ? el("span", { title: run.model }, model) : null, active && run.tokens_per_second ? el("span", { class: "rl-num" }, `${num(run.tokens_per_second, 0)} tokens/s`) : null,
          el("span", {}, `seed ${run.seed}`), teacher ? el("span", { class: "rl-num", title: "the model teacher, training and evaluation together" }, `teacher: ${teacher}`) : null, parent ? el("span", {}, parent) : null)));
      fill(this.state, badge(run.status, run.detail), progress ? el("span", { class: "rl-num" }, progress) : null,
        active && run.phase && run.total ? el("span", { class: "rl-muted" }, run.phase) : null, eta, took);
      const lines = `${run.bad_lines} line${run.bad_lines === 1 ? "" : "s"} of the run's events could not be read and ${run.bad_lines === 1 ? "was" : "were"} left out.`;
      fill(this.notices,
        active && run.status !== "queued" ? el("div", { class: "rl-progress", dataset: run.total ? {} : { unknown: "1" } }, el("i", { style: { width: `${run.total ? Math.min(100, (100 * run.done) / run.total) : 30}%` } })) : null,
        run.status === "queued" ? el("div", { class: "rl-alert" }, "It waits in the queue, and starts by itself when its turn comes. ", run.detail ? `${run.detail} ` : null, el("a", { href: links.runs() }, "See the queue")) : null,
        run.detail && ["failed", "interrupted", "stopped"].includes(run.status) ? el("div", { class: "rl-alert", dataset: { kind: run.status === "failed" ? "error" : "" } }, run.detail) : null,
        run.bad_lines ? el("div", { class: "rl-alert" }, lines) : null);
    }

    async act(act) {
      const { run } = this.data;
      if (act === "abort" && !(await rl2f.confirm({ title: `Abort run ${run.id}?`, text: "It ends at once. What came after its last commit is lost; it can be resumed from there.", action: "Abort" }))) return;
      if (act === "delete" && !(await rl2f.confirm({ title: `Delete run ${run.id}, ${run.name}?`, text: "Its dialogues, labels, notes, checkpoints and files go." }))) return;
      try {
        const { status } = await api(`${this.base}/act`, { body: { act } });
        if (status === "deleted") { this.end(); location.href = links.runs(); return; }
        rl2f.toast(`Run ${run.id} is ${status}.`);
      } finally { if (!this.over) this.now(); }
    }

    /* ---- At a glance ---- */
    showGlance() {
      const { cards, run } = this.data;
      const trains = ["train", "eval"].includes(run.kind);
      this.glance.hidden = !trains && !Object.values(cards).some(Boolean);
      const card = (title, help, body, source) => el("div", { class: "rl-card" }, el("h2", { title: help }, title), body, source ? el("span", { class: "rl-source" }, source) : null);
      const none = (text) => el("span", { class: "rl-muted" }, text);
      const { hints, solved, changes, groups } = cards;
      const later = ACTIVE.has(run.status) ? "Known after the evaluation that ends the run." : "Not evaluated with hints and without. Evaluate a checkpoint below.";
      fill(this.glance,
        card("Used the hints?", "Solved within all turns with hints, minus the same under contentless feedback", hints
          ? [el("div", { class: "rl-big" }, el("b", {}, hints.value), el("span", { class: "rl-muted" }, hints.interval)),
            el("div", {}, hints.separated ? el("b", {}, hints.verdict) : hints.verdict),
            el("div", { class: "rl-under" }, hints.under.map((u) => el("span", {}, `${u.control} `, el("b", {}, u.text))))]
          : none(later), hints?.source),
        card("Solved by turn", "Share of dialogues solved within t turns", solved
          ? el("div", { class: "rl-turns" }, solved.bars.map((bar) => [el("span", { class: "rl-muted" }, String(bar.turn)),
            el("span", { class: "rl-bar", title: bar.text }, el("i", { style: { width: `${100 * (bar.value ?? 0)}%` } }),
              bar.low === null ? null : el("u", { style: { left: `${100 * bar.low}%`, width: `${100 * (bar.high - bar.low)}%` } })),
            el("b", { title: bar.text }, bar.text.split(" ")[0])]))
          : none("No dialogue was played yet."), solved?.source),
        card("Changes after feedback", "What the next attempt does after a wrong one", changes
          ? el("div", { class: "rl-quad" }, changes.pairs.map((p) => el("div", { class: "rl-stat", title: `${p.metric} ${p.title}` }, el("b", {}, p.text), el("span", {}, p.name))))
          : none("No attempt after feedback yet."), changes?.source),
        card("Groups", "Only groups with different returns teach", groups
          ? [el("div", { class: "rl-split" }, groups.shares.map((s, i) => el("i", { style: { width: `${100 * s.value}%`, background: GROUP[i] } }))),
            el("div", { class: "rl-shares" }, groups.shares.map((s, i) => el("div", { title: s.metric }, el("i", { style: { background: GROUP[i] } }), s.name, el("b", {}, s.text))))]
          : none(run.kind === "eval" ? "An evaluation trains nothing." : "No group was trained on yet."), groups?.source));
    }

    /* ---- Curves ---- */
    tools() {
      const select = el("select", { class: "rl-field", "aria-label": "Along x", onchange: () => { this.x = select.value; this.changed(); } },
        X.map(([key, text]) => el("option", { value: key, selected: key === this.x }, text)));
      const shown = el("output", {}, this.smooth.toFixed(2));
      let timer = null;
      const slider = el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: this.smooth, "aria-label": "Smoothing",
        oninput: () => { this.smooth = Number(slider.value); shown.textContent = this.smooth.toFixed(2); clearTimeout(timer); timer = setTimeout(() => this.changed(), 120); } });
      return el("div", { class: "rl-tools" }, el("label", {}, "x", select), el("label", {}, "smoothing", slider, shown), this.find());
    }
    find() {
      const list = el("div", { class: "rl-find-list", role: "listbox", id: "rl-series", hidden: true });
      let at = 0, found = [];
      const draw = () => {
        const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
        found = (this.catalogue ?? []).filter((s) => words.every((w) => `${s.name} ${s.title} ${s.help}`.toLowerCase().includes(w))).slice(0, 60);
        at = Math.min(at, Math.max(0, found.length - 1));
        fill(list, found.length ? found.map((s, i) => el("button", { type: "button", role: "option", "aria-selected": String(i === at), onmousedown: (e) => e.preventDefault(), onclick: () => { this.toggle(s.name); draw(); } },
          el("span", { class: "rl-mono" }, s.name), el("span", { class: "rl-muted" }, this.more.includes(s.name) ? "✓ shown" : ""), el("small", {}, [s.title === s.name ? "" : s.title, s.unit, s.help].filter(Boolean).join(" · "))))
          : el("p", { class: "rl-muted", style: { margin: "8px" } }, this.catalogue ? "No series has these words." : "…"));
        list.hidden = false;
        list.children[at]?.scrollIntoView?.({ block: "nearest" });
      };
      const input = el("input", { type: "search", class: "rl-field", placeholder: "search more series…", role: "combobox", "aria-controls": "rl-series", "aria-expanded": "false", autocomplete: "off",
        onfocus: async () => { draw(); if (!this.catalogue) { try { this.catalogue = (await api(`${this.base}/series`)).series; } catch { return; } if (!list.hidden) draw(); } },
        oninput: () => { at = 0; draw(); },
        onblur: () => setTimeout(() => { list.hidden = true; }, 120),
        onkeydown: (event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) { at = (at + step + found.length) % Math.max(1, found.length); draw(); event.preventDefault(); }
          else if (event.key === "Enter" && found[at]) { this.toggle(found[at].name); draw(); event.preventDefault(); }
          else if (event.key === "Escape") { list.hidden = true; }
        } });
      return el("div", { class: "rl-find" }, input, list);
    }
    toggle(name) {
      if (!this.more.includes(name) && this.more.length >= MORE) return void rl2f.toast(`At most ${MORE} further series are shown; close one first.`);
      this.more = this.more.includes(name) ? this.more.filter((n) => n !== name) : [...this.more, name];
      this.changed();
    }
    changed() {
      setQuery({ x: this.x === "step" ? null : this.x, smooth: this.smooth === 0.6 ? null : this.smooth, more: this.more.length ? this.more : null });
      this.loadCharts();
    }
    wanted() { return `${this.x}|${this.smooth}|${this.more}`; }
    async loadCharts() {
      const wanted = this.settings = this.wanted();
      const ask = (names) => api(`${this.base}/charts?x=${this.x}&smooth=${this.smooth}${names ? `&names=${encodeURIComponent(names)}` : ""}`);
      let first, second;
      try { [first, second] = await Promise.all([ask(""), this.more.length ? ask(this.more.join(",")) : { charts: [] }]); } catch { return; }
      if (wanted !== this.wanted()) return;
      const { run } = this.data;
      const empty = !first.charts.length;
      this.charts.hidden = empty && run.kind !== "train";
      fill(this.chartsEmpty, empty ? el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, ACTIVE.has(run.status) ? "The first step is on its way." : "This run made no step."),
        el("p", {}, ACTIVE.has(run.status) ? "Curves appear by themselves." : "Its log says why; a resume goes on from the start.")) : null);
      const left = first.demonstrated;
      this.chartsNote.textContent = empty ? "" : `A click on a point opens the dialogues of that step.${left.length ? ` ${left.join(", ")}: demonstrations, whose rewards are not the student's and are left out.` : ""}`;
      this.overview.set(first.charts);
      this.further.set(second.charts);
    }
    pointUrl([stage, step]) { return links.dialogues({ run: this.id, phase: "train", stage, step }); }

    /* ---- Evaluation ---- */
    async loadEvaluation() {
      if (!this.data.evaluated) { this.evaluationBox.hidden = true; return; }
      let evaluation;
      try { ({ evaluation } = await api(`${this.base}/evaluation`)); } catch { return; }
      this.evaluationBox.hidden = !evaluation;
      if (!evaluation) return;
      fill(this.evaluationBox, el("h2", {}, "Evaluation", el("span", { class: "rl-muted rl-small" }, evaluation.title), evaluation.whole ? null : el("span", { class: "rl-chip" }, "so far")),
        this.accuracy.node, this.sheet(evaluation),
        evaluation.parts.length ? [el("h2", {}, "By environment", el("span", { class: "rl-muted rl-small" }, "the same for the tasks of each part alone")), evaluation.parts.map((part) => this.part(part))] : null);
      this.accuracy.set(evaluation.charts);
    }
    /** Table, findings and differences of an evaluation or of one of its parts. */
    sheet(evaluation) {
      const { table, differences, findings, dialoguesOf } = rl2f.evaluation;
      return [
        el("div", { class: "rl-card rl-stack" }, table(evaluation, dialoguesOf(this.id)), el("p", { class: "rl-muted rl-small", style: { margin: 0 } }, "Square brackets and bars: 95 % intervals. best with hints, best without: the best possible players. ≈ constant: no better than always giving the best constant answer.")),
        evaluation.attempts ? el("details", { class: "rl-fold", dataset: { fold: "attempts" } }, el("summary", {}, "What attempts came to"), el("div", { class: "rl-card" }, table({ ...evaluation, table: evaluation.attempts }, dialoguesOf(this.id)))) : null,
        el("div", { class: "rl-two" },
          evaluation.findings.length ? el("div", { class: "rl-card rl-stack" }, el("h2", {}, "What separates and what does not"), findings(evaluation.findings)) : null,
          evaluation.differences.length ? el("div", { class: "rl-card rl-stack" }, el("h2", {}, "Differences between checkpoints"), differences(evaluation.differences)) : null),
      ];
    }
    /** One environment of a mixture; drawn once it is opened. */
    part(part) {
      const box = el("div", { class: "rl-stack" });
      const details = el("details", { class: "rl-fold", dataset: { fold: "part" } }, el("summary", {}, part.title), box);
      details.addEventListener("toggle", () => {
        if (!details.open || box.children.length) return;
        const grid = new rl2f.charts.Grid(this.node.dataset.plotly);
        fill(box, grid.node, this.sheet(part));
        grid.set(part.charts);
      });
      return details;
    }

    /* ---- Stages and checkpoints ---- */
    showSides() {
      const { stages, checkpoints, children, run } = this.data;
      const now = Date.now() / 1000;
      const sign = (s) => s.done >= s.steps ? "✓" : s.started ? "●" : "○";
      const length = (s) => s.seconds !== null ? duration(s.seconds) : s.started && run.status === "running" ? duration(now - s.started) : "";
      const saved = checkpoints.length;
      const evaluate = (name) => api(`${this.base}/evaluate`, { body: { checkpoint: name } }).then(({ run: made }) =>
        rl2f.toast(`Run ${made} will evaluate ${name}.`, { action: { label: "Open", run: () => { location.href = links.run(made); } } })).then(() => this.now()).catch(() => {});
      fill(this.sides,
        stages.length ? el("div", { class: "rl-card rl-stack" }, el("h2", {}, "Stages"), el("ol", { class: "rl-stages" }, stages.map((s) => el("li", {},
          el("span", { class: s.done >= s.steps ? "rl-right" : "rl-muted" }, sign(s)),
          el("span", {}, el("b", {}, s.name), ` ${s.method}`, s.demonstrations ? el("span", { class: "rl-muted" }, ", demonstrations") : null),
          el("span", { class: "rl-num rl-muted" }, `${s.done}/${s.steps}`, length(s) ? ` · ${length(s)}` : ""))))) : null,
        run.kind === "train" ? el("div", { class: "rl-card rl-stack" }, el("h2", {}, "Checkpoints"),
          saved ? el("div", { class: "rl-scroll", style: { maxHeight: "260px", overflowY: "auto" } }, el("table", { class: "rl-table rl-checkpoints" }, el("tbody", {}, [...checkpoints].reverse().map((c) => el("tr", {},
            el("td", { title: `SHA-256 ${c.sha256}` }, el("b", {}, c.name)), el("td", { class: "rl-muted" }, time(c.time)),
            el("td", {}, el("span", { class: "rl-row" },
              el("button", { type: "button", class: "rl-button rl-small", disabled: rl2f.readOnly, title: "Put an evaluation of it into the queue", onclick: () => evaluate(c.name) }, "Evaluate"),
              el("a", { class: "rl-button rl-small", href: links.chat(null, [`${run.id}:${c.name}`]) }, "Chat"),
              el("a", { class: "rl-button rl-small", href: `/exports?run=${run.id}&stage=${encodeURIComponent(c.stage)}`, title: `The dialogues of ${c.stage} as data sets` }, "Export")))))))
            ) : el("span", { class: "rl-muted" }, "None was saved yet.")) : null,
        children.length ? el("div", { class: "rl-card rl-stack" }, el("h2", {}, "Runs from this one"), el("div", { class: "rl-scroll" }, el("table", { class: "rl-table" }, el("tbody", {}, children.map((c) => el("tr", {},
          el("td", {}, el("a", { href: links.run(c.id) }, `${c.id} ${c.name}`)), el("td", {}, c.kind), el("td", {}, badge(c.status)), el("td", { class: "rl-muted" }, time(c.created)))))))) : null);
    }

    /* ---- Files ---- */
    fold(title, key, show) {
      const box = el("div");
      const details = el("details", { class: "rl-fold", dataset: { fold: key } }, el("summary", {}, title), box);
      details.addEventListener("toggle", () => { if (details.open) show(box, details); });
      return details;
    }
    async showConfig(box) {
      let yaml;
      try { ({ yaml } = await api(`${this.base}/config`)); } catch { return; }
      fill(box, el("p", { class: "rl-row", style: { margin: "0 0 8px" } },
        el("button", { type: "button", class: "rl-button rl-small", onclick: () => navigator.clipboard.writeText(yaml).then(() => rl2f.toast("Copied."), () => rl2f.toast("The browser does not allow copying here.")) }, "Copy"),
        el("a", { class: "rl-button rl-small", href: links.fresh(null, this.id) }, "Clone")), el("pre", { class: "rl-code", tabindex: 0 }, yaml));
    }
    async showEnvironment(box) {
      let meta;
      try { ({ meta } = await api(`${this.base}/environment`)); } catch { return; }
      if (!meta) return fill(box, el("span", { class: "rl-muted" }, "The run's folder has no record of it."));
      const { packages = {}, created, ...rest } = meta;
      const pair = (name, value) => [el("dt", {}, name), el("dd", {}, value)];
      fill(box, el("dl", { class: "rl-pairs" }, created ? pair("created", time(created)) : null,
        Object.entries(rest).map(([name, value]) => pair(name, String(value ?? "–"))),
        Object.entries(packages).map(([name, value]) => pair(name, String(value)))));
    }
    async showLog(box, details) {
      if (this.logPoll) this.logPoll.stop();
      const text = el("pre", { class: "rl-code rl-wrap", tabindex: 0, "aria-label": "What the worker printed" });
      const note = el("p", { class: "rl-muted rl-small", style: { margin: "0 0 6px" } });
      const rows = el("div", { class: "rl-notes", style: { marginBottom: "10px" } });
      fill(box, rows, note, text);
      let at = null, follows = true;
      text.addEventListener("scroll", () => { follows = text.scrollHeight - text.scrollTop - text.clientHeight < 24; });
      this.logPoll = rl2f.poll(async () => {
        if (!details.open || this.over) return this.logPoll?.stop();
        if (at !== null && this.data && !ACTIVE.has(this.data.run.status) && this.logRead) return;
        const found = await api(`${this.base}/log${at === null ? "" : `?at=${at}`}`, { quiet: true });
        if (found.fresh) text.textContent = found.text; else if (found.text) text.append(found.text);
        at = found.at;
        this.logRead = found.at >= found.size;
        note.textContent = found.size ? `${num(found.size / 1000, 1)} kB${found.fresh && found.size > 65536 ? "; the last 64 kB are shown" : ""}` : "The worker has printed nothing.";
        text.hidden = !found.size;
        if (found.rows.length) fill(rows, found.rows.map((row) => {
          const [first, ...others] = row.text.split("\n");
          const line = [time(row.time), row.level === "info" ? null : el("b", { class: "rl-leak" }, row.level), el("span", {}, first.replace(/^#+ /, ""))];
          return others.length ? el("details", {}, el("summary", { class: "rl-row" }, line), el("pre", { class: "rl-code" }, others.join("\n"))) : el("div", { class: "rl-row" }, line);
        }));
        if (follows) text.scrollTop = text.scrollHeight;
      }, FAST);
    }

    /* ---- Tags and notes ---- */
    showPeople() {
      const { tags, notes, other_notes: others } = this.data;
      const state = JSON.stringify([tags, notes, others]);
      if (state === this.peopleState) return;
      this.peopleState = state;
      const put = (wanted) => api(`${this.base}/tags`, { method: "PUT", body: { tags: wanted } }).then(() => this.now()).catch(() => {});
      const field = el("input", { type: "text", class: "rl-field", placeholder: "add a tag", maxlength: 60, style: { width: "130px" }, disabled: rl2f.readOnly,
        onkeydown: (event) => { if (event.key === "Enter" && field.value.trim()) { put([...tags, field.value]); field.value = ""; } } });
      const note = el("textarea", { class: "rl-field", rows: 2, placeholder: "A note on this run", "aria-label": "A note on this run", style: { width: "100%" }, disabled: rl2f.readOnly,
        value: this.draft ?? "", oninput: () => { this.draft = note.value; } });
      const save = () => note.value.trim() && api(`${this.base}/notes`, { body: { text: note.value } }).then(() => { this.draft = ""; this.now(); }).catch(() => {});
      note.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) save(); });
      fill(this.people, el("h2", {}, "Tags and notes"),
        el("div", { class: "rl-tags" }, tags.map((tag) => el("span", { class: "rl-chip" }, tag, el("button", { type: "button", "aria-label": `Remove ${tag}`, disabled: rl2f.readOnly, onclick: () => put(tags.filter((t) => t !== tag)) }, "×"))), field),
        el("div", { class: "rl-notes" }, notes.map((n) => el("div", { class: "rl-note" }, el("p", {}, n.text), el("span", { class: "rl-muted rl-small" }, time(n.time)),
          el("button", { type: "button", class: "rl-icon", "aria-label": "Delete this note", disabled: rl2f.readOnly, onclick: () => api(`${this.base}/notes/${n.id}`, { method: "DELETE" }).then(() => this.now()).catch(() => {}) }, "×"))),
          note, el("div", { class: "rl-row" }, el("button", { type: "button", class: "rl-button rl-small", disabled: rl2f.readOnly, onclick: save }, "Save note"), el("span", { class: "rl-muted rl-small" }, "Ctrl+Enter"),
            others ? el("a", { href: links.dialogues({ run: this.id }) }, `${others} note${others === 1 ? "" : "s"} on its dialogues`) : null)));
    }
  }
  const GROUP = ["var(--rl-student)", "var(--rl-right)", "var(--rl-wrong)"];
})();
