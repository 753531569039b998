"use strict";
/* Page Compare. What it shows stands in the address: runs, metric, x, smooth, seeds, q (quantity), base. */
(() => {
  const { el, fill, query, setQuery, links, api, badge, time } = rl2f;
  const ACTIVE = new Set(["queued", "starting", "running", "stopping"]);
  const X = [["step", "steps"], ["tokens", "sampled tokens"], ["time", "time"]];
  const SWATCH = { solid: "solid", dash: "dashed", dot: "dotted", dashdot: "dashed", longdash: "dashed", longdashdot: "dashed" };

  rl2f.widget("compare", (node) => new ComparePage(node).begin());

  class ComparePage {
    constructor(node) {
      this.node = node;
      const asked = query();
      this.ids = [...new Set((asked.runs ?? "").split(",").filter(Boolean).map(Number).filter((id) => Number.isInteger(id) && id > 0))];
      this.metrics = (asked.metric || "reward").split(",").filter(Boolean);
      this.x = X.some(([key]) => key === asked.x) ? asked.x : "step";
      const weight = asked.smooth === undefined || asked.smooth === "" ? 0.6 : Number(asked.smooth);
      this.smooth = weight >= 0 && weight <= 0.99 ? weight : 0.6;
      this.seeds = asked.seeds === "1";
      this.quantity = asked.q || "cum_acc/T";
      this.base = asked.base || "";
    }

    async begin() {
      this.grid = new rl2f.charts.Grid(this.node.dataset.plotly, {
        wide: true, onPoint: ([run, stage, step]) => { location.href = links.dialogues({ run, phase: "train", stage, step }); },
        onClose: (key) => { this.metrics = this.metrics.filter((name) => name !== key); this.changed(); },
      });
      this.picked = el("div", { class: "rl-picked" });
      this.note = el("div");
      this.body = el("div", { class: "rl-page" });
      this.sections = { charts: el("section", { class: "rl-section" }), evaluations: el("section", { class: "rl-section", hidden: true }), config: el("section", { class: "rl-section", hidden: true }) };
      fill(this.node, el("div", { class: "rl-head" }, el("h1", {}, "Compare")), this.picked, this.note, this.body);
      await this.load();
      let seen = this.version;
      rl2f.poll(async () => {
        if (!this.runs?.some((run) => ACTIVE.has(run.status))) return;
        const { version } = await api("/api/compare/version", { quiet: true });
        if (version !== seen) { seen = version; await this.load(); }
      }, 3000);
    }

    changed() {
      setQuery({
        runs: this.ids.length ? this.ids : null, metric: this.metrics.join() === "reward" ? null : this.metrics, x: this.x === "step" ? null : this.x,
        smooth: this.smooth === 0.6 ? null : this.smooth, seeds: this.seeds ? 1 : null, q: this.quantity === "cum_acc/T" ? null : this.quantity, base: this.base || null,
      });
      return this.load();
    }
    async load() {
      const ids = this.ids.join(",");
      let found;
      try { found = await api(`/api/compare?ids=${ids}`); } catch (error) {
        if (!this.runs) fill(this.body, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? "The runs cannot be compared."), el("p", {}, error.fix ?? ""), el("p", { class: "rl-actions" }, el("a", { class: "rl-button", href: "/compare" }, "Start anew"))));
        return;
      }
      if (ids !== this.ids.join(",")) return;
      this.runs = found.runs;
      this.version = found.version;
      this.series = found.series;
      this.drawPicked(found);
      if (!this.runs.length) return this.drawEmpty();
      if (!this.sections.charts.isConnected) fill(this.body, this.sections.charts, this.sections.evaluations, this.sections.config);
      this.drawTools(found);
      this.drawConfig(found.config);
      await Promise.all([this.loadCharts(), this.loadEvaluations()]);
    }

    /* ---- Which runs ---- */
    swatch(run) { return el("i", { class: "rl-swatch", style: { color: `var(${run.color})`, borderTopStyle: SWATCH[run.dash] ?? "solid" } }); }
    drawPicked({ runs, gone }) {
      if (!this.adder) this.adder = this.picker();
      fill(this.picked, runs.map((run) => el("span", { class: "rl-chip", dataset: { run: run.id } }, this.swatch(run), el("a", { href: links.run(run.id), title: [run.environment, run.method, run.model, `seed ${run.seed}`].join(" · ") }, `${run.id} ${run.name}`),
        run.status === "succeeded" ? null : badge(run.status),
        el("button", { type: "button", "aria-label": `Take run ${run.id} away`, onclick: () => { this.ids = this.ids.filter((id) => id !== run.id); this.changed(); } }, "×"))), this.adder);
      fill(this.note, gone.length ? el("div", { class: "rl-alert", role: "alert" }, `${gone.length === 1 ? "There is no run" : "There are no runs"} ${gone.join(", ")}: deleted, or the link is wrong. `,
        el("button", { type: "button", class: "rl-button rl-small", onclick: () => { this.ids = this.ids.filter((id) => !gone.includes(id)); this.changed(); } }, "Take away")) : null);
    }
    picker() {
      return this.finder("add a run…", "rl-pick", async (text) => (await api(`/api/compare/runs?search=${encodeURIComponent(text)}`, { quiet: true })).runs.filter((run) => !this.ids.includes(run.id)),
        (run) => [el("span", {}, `${run.id} ${run.name}`), badge(run.status), el("small", {}, [run.environment, run.method, `seed ${run.seed}`].filter(Boolean).join(" · "), " ", time(run.created))],
        (run) => { this.ids = [...this.ids, run.id]; this.changed(); }, "No run has these words.");
    }
    /** A field that offers what is found: `ask(text)` → items, `line(item)` → nodes, `take(item)`. */
    finder(placeholder, id, ask, line, take, none) {
      const list = el("div", { class: "rl-find-list", role: "listbox", id, hidden: true });
      let at = 0, found = [], round = 0;
      const draw = () => {
        fill(list, found.length ? found.map((item, i) => el("button", { type: "button", role: "option", "aria-selected": String(i === at), onmousedown: (e) => e.preventDefault(), onclick: () => pick(item) }, line(item)))
          : el("p", { class: "rl-muted", style: { margin: "8px" } }, none));
        list.hidden = false;
        list.children[at]?.scrollIntoView?.({ block: "nearest" });
      };
      const search = async () => { const mine = ++round; try { const items = await ask(input.value); if (mine !== round || document.activeElement !== input) return; found = items; at = 0; draw(); } catch { /* the banner says it */ } };
      const pick = (item) => { take(item); input.value = ""; input.blur(); };
      let timer = null;
      const input = el("input", { type: "search", class: "rl-field", placeholder, role: "combobox", "aria-label": placeholder, "aria-controls": id, "aria-expanded": "false", autocomplete: "off",
        onfocus: search, oninput: () => { clearTimeout(timer); timer = setTimeout(search, 120); }, onblur: () => setTimeout(() => { list.hidden = true; }, 120),
        onkeydown: (event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step && found.length) { at = (at + step + found.length) % found.length; draw(); event.preventDefault(); }
          else if (event.key === "Enter" && found[at]) { pick(found[at]); event.preventDefault(); }
        } });
      return el("div", { class: "rl-find rl-find-left" }, input, list);
    }
    drawEmpty() {
      fill(this.body, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "Pick the runs to compare."), el("p", {}, "Add them above, or mark several in the list of runs. Curves, evaluations and the differences of their configurations appear here."),
        el("p", { class: "rl-actions" }, el("a", { class: "rl-button", href: links.runs() }, "All runs"))));
    }

    /* ---- Curves ---- */
    drawTools(found) {
      if (!this.tools) {
        const select = el("select", { class: "rl-field", "aria-label": "Along x", onchange: () => { this.x = select.value; this.changed(); } }, X.map(([key, text]) => el("option", { value: key, selected: key === this.x }, text)));
        const shown = el("output", {}, this.smooth.toFixed(2));
        let timer = null;
        const slider = el("input", { type: "range", min: 0, max: 0.95, step: 0.05, value: this.smooth, "aria-label": "Smoothing",
          oninput: () => { this.smooth = Number(slider.value); shown.textContent = this.smooth.toFixed(2); clearTimeout(timer); timer = setTimeout(() => this.changed(), 120); } });
        this.merge = el("input", { type: "checkbox", checked: this.seeds, onchange: () => { this.seeds = this.merge.checked; this.changed(); } });
        this.mergeLabel = el("label", { title: "Runs whose configurations differ in the seed alone become one line: their mean, with a t interval" }, this.merge, "merge seeds");
        const metric = this.finder("add a metric…", "rl-metrics", async (text) => {
          const words = text.toLowerCase().split(/\s+/).filter(Boolean);
          return this.series.filter((s) => !this.metrics.includes(s.name) && words.every((w) => `${s.name} ${s.title} ${s.help}`.toLowerCase().includes(w))).slice(0, 60);
        }, (s) => [el("span", { class: "rl-mono" }, s.name), el("span"), el("small", {}, [s.title === s.name ? "" : s.title, s.unit].filter(Boolean).join(" · "))], (s) => { this.metrics = [...this.metrics, s.name]; this.changed(); }, "No metric has these words.");
        this.tools = el("div", { class: "rl-tools" }, el("label", {}, "x", select), el("label", {}, "smoothing", slider, shown), this.mergeLabel, metric);
        this.noCharts = el("div");
        fill(this.sections.charts, this.tools, this.noCharts, this.grid.node);
      }
      this.mergeLabel.hidden = !found.seeds && !this.seeds;
    }
    async loadCharts() {
      const asked = `ids=${this.ids.join(",")}&metric=${encodeURIComponent(this.metrics.join(","))}&x=${this.x}&smooth=${this.smooth}&seeds=${this.seeds}`;
      this.asked = asked;
      let charts;
      try { ({ charts } = await api(`/api/compare/charts?${asked}`)); } catch { return; }
      if (asked !== this.asked) return;
      fill(this.noCharts, charts.length ? null : el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, this.metrics.length ? `None of these runs has ${this.metrics.join(", ")}.` : "No metric is chosen."), el("p", {}, "Add a metric above.")));
      this.grid.set(charts);
    }

    /* ---- Evaluations ---- */
    async loadEvaluations() {
      const box = this.sections.evaluations;
      const asked = `ids=${this.ids.join(",")}&base=${encodeURIComponent(this.base)}&seeds=${this.seeds}`;
      this.askedEvaluations = asked;
      let found;
      try { found = await api(`/api/compare/evaluations?${asked}`); } catch { return; }
      if (asked !== this.askedEvaluations) return;
      if (found.pending) setTimeout(() => this.loadEvaluations(), 50);  // the rest of the differences
      const played = found.tables.filter((t) => t.evaluation);
      box.hidden = false;
      if (!played.length) {
        fill(box, el("h2", {}, "Evaluations"), el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "None of these runs was evaluated."), el("p", {}, "Open a run and evaluate one of its checkpoints; then they can be compared here.")));
        return;
      }
      fill(box, el("h2", {}, "Evaluations"), this.matrix(played), found.merged.map((m) => this.seedTable(m)), found.checkpoints.length > 1 ? this.paired(found) : null);
    }
    matrix(played) {
      const { number, control, range, dialoguesOf } = rl2f.evaluation;
      const columns = new Map(played.flatMap((t) => t.evaluation.table.columns.map((c) => [c.key, c])));
      const chosen = columns.has(this.quantity) ? this.quantity : "cum_acc/T";
      const last = columns.get(chosen);
      const turns = [...new Set(played.map((t) => t.evaluation.turns))];
      const name = (c) => (c.key === "cum_acc/T" ? `solved within ${turns.length === 1 ? turns[0] : "all"} turns` : c.key === "cum_acc/1" ? "solved at turn 1" : c.title);
      const rows = new Map();
      for (const t of played) for (const row of t.evaluation.table.rows) rows.set(`${row.checkpoint}\n${row.control}`, [row.checkpoint, row.control]);
      const cells = new Map(played.map((t) => [t.run, new Map(t.evaluation.table.rows.map((row) => [`${row.checkpoint}\n${row.control}`, row.cells[chosen]]))]));
      const [low, high] = range([...cells.values()].flatMap((m) => [...m.values()]));
      const select = el("select", { class: "rl-field", "aria-label": "Quantity", onchange: () => { this.quantity = select.value; this.changed(); } }, [...columns.values()].map((c) => el("option", { value: c.key, selected: c.key === chosen }, name(c))));
      let before = null;
      return el("div", { class: "rl-card rl-stack" }, el("div", { class: "rl-row" }, select, el("span", { class: "rl-muted rl-small" }, last.help, " Square brackets and bars: 95 % intervals.")),
        el("div", { class: "rl-scroll" }, el("table", { class: "rl-table rl-eval" },
          el("thead", {}, el("tr", {}, el("th", {}, "checkpoint"), el("th", {}, "control"), played.map((t) => { const run = this.runs.find((r) => r.id === t.run); return el("th", {}, this.swatch(run), " ", el("a", { href: links.run(run.id) }, `${run.id} ${run.name}`), t.evaluation.whole ? null : " (so far)"); }))),
          el("tbody", {}, [...rows].map(([key, [checkpoint, who]]) => {
            const first = checkpoint !== before;
            before = checkpoint;
            return el("tr", { class: `${first ? "rl-first" : ""} ${who === "hints" ? "rl-hints" : ""}` }, el("td", {}, first ? el("b", {}, checkpoint) : ""), el("td", {}, control(who)),
              played.map((t) => {
                const cell = cells.get(t.run).get(key);
                return el("td", {}, cell ? el("a", { class: "rl-cell", href: dialoguesOf(t.run)(checkpoint, who) }, number(cell)) : el("span", { class: "rl-muted" }, chosen === "effect" && who === "contentless" && cells.get(t.run).has(key) ? "0 by definition" : "–"), cell ? rl2f.charts.whisker(cell, low, high) : null);
              }));
          })))));
    }
    paired(found) {
      const { number, range } = rl2f.evaluation;
      const select = el("select", { class: "rl-field", "aria-label": "Against", onchange: () => { this.base = select.value; this.changed(); } }, found.checkpoints.map((name) => el("option", { value: name, selected: name === found.base }, name)));
      const [low, high] = range(found.differences.flatMap((row) => row.quantities.map((q) => q.cell)));
      const line = (row) => (row.unlike.length ? [el("tr", {}, el("td", {}, row.checkpoint), el("td", { class: "rl-muted", colspan: 4 }, `not paired: other ${row.unlike.join(", ")}`))]
        : row.quantities.map((q, i) => el("tr", { class: i ? "" : "rl-first" }, el("td", {}, i ? "" : row.checkpoint), el("td", {}, q.quantity), el("td", {}, number(q.cell), q.cell ? rl2f.charts.whisker(q.cell, low, high) : null), el("td", {}, q.finding), el("td", { class: "rl-muted" }, String(q.tasks)))));
      return el("div", { class: "rl-card rl-stack" }, el("h2", {}, "Paired differences"),
        el("div", { class: "rl-row" }, el("span", { class: "rl-muted" }, "each checkpoint minus"), select, el("span", { class: "rl-muted rl-small" }, "on the same tasks with the same evaluation seed; 95 % intervals from resampling tasks, not corrected for their number")),
        el("div", { class: "rl-scroll" }, el("table", { class: "rl-table rl-eval" }, el("thead", {}, el("tr", {}, ["run:checkpoint", "quantity", "difference", "finding", "tasks"].map((t) => el("th", {}, t)))), el("tbody", {}, found.differences.map(line), found.pending ? el("tr", {}, el("td", { class: "rl-muted", colspan: 5 }, `${found.pending} more…`)) : null))));
    }
    seedTable(merged) {
      const { number, findings } = rl2f.evaluation;
      return el("div", { class: "rl-card rl-stack" }, el("h2", {}, `Over ${merged.seeds.length} seeds`, el("span", { class: "rl-muted rl-small" }, merged.title)),
        el("div", { class: "rl-scroll" }, el("table", { class: "rl-table rl-eval" },
          el("thead", {}, el("tr", {}, ["checkpoint", "control", "quantity", ...merged.seeds.map((s) => `seed ${s}`), "mean [t interval]", "above 0"].map((t) => el("th", {}, t)))),
          el("tbody", {}, merged.rows.map((row) => el("tr", {}, el("td", {}, row.checkpoint), el("td", {}, row.control), el("td", {}, row.quantity), row.values.map((v) => el("td", {}, v)), el("td", {}, number(row.mean)), el("td", {}, row.above ?? "")))))),
        el("details", {}, el("summary", {}, "In words"), findings(merged.findings)));
    }

    /* ---- Configurations ---- */
    drawConfig(rows) {
      const box = this.sections.config;
      box.hidden = this.runs.length < 2;
      fill(box, el("h2", {}, "Differences of the configurations"), rows.length
        ? el("div", { class: "rl-card rl-scroll" }, el("table", { class: "rl-table rl-diff" }, el("thead", {}, el("tr", {}, el("th", {}, "key"), this.runs.map((run) => el("th", {}, this.swatch(run), ` ${run.id} ${run.name}`)))),
          el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "rl-mono" }, row.key), row.values.map((v) => el("td", { class: "rl-mono" }, v)))))))
        : el("p", { class: "rl-muted", style: { margin: 0 } }, "They are the same."));
    }
  }
})();
