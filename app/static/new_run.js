"use strict";
/* Page New run: preset or clone at the top, the form at the left, YAML and actions at the right. */
(() => {
  const { el, fill, api, query, setQuery, toast } = rl2f;
  const DRAFTS = "rl2f.drafts", KEPT = 20;
  const FORM_WAIT = 180, YAML_WAIT = 350, POLL = 1000;

  /* ---- Drafts: what was not started yet outlives a reload, one for each preset or clone ---- */
  const drafts = {
    all() { try { return JSON.parse(localStorage.getItem(DRAFTS)) ?? {}; } catch { return {}; } },
    get(key) { return this.all()[key] ?? null; },
    put(key, draft) {
      const all = this.all();
      delete all[key];
      if (draft) all[key] = { ...draft, time: Date.now() };
      const names = Object.keys(all);
      for (const old of names.slice(0, Math.max(0, names.length - KEPT))) delete all[old];
      try { localStorage.setItem(DRAFTS, JSON.stringify(all)); } catch { /* a browser without storage keeps it for this page */ }
    },
  };

  rl2f.widget("new_run", (root) => new Page(root).load());

  class Page {
    constructor(root) {
      this.root = root;
      root.closest(".prose")?.classList.remove("prose"); // Gradio's style of running text, which outweighs that of controls
      this.specs = new Map();
      this.version = 0; // of what the person edits
      this.seen = -1; // the version that `checked` speaks of
      this.mode = "form";
      this.timer = null;
      addEventListener("popstate", () => this.load());
      rl2f.keys.add("New run", [{ keys: ["Ctrl+Enter"], text: "start the run", typing: true, run: () => this.launch() }]);
    }

    // -- where it starts -------------------------------------------------------------------------------------------
    async load() {
      const { preset, clone, preflight } = query();
      const params = new URLSearchParams(clone ? { clone } : preset ? { preset } : {});
      let start;
      try {
        start = await api(`/api/form/start?${params}`, { quiet: true });
      } catch (error) {
        if (error.name === "AbortError") return;
        fill(this.root, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? String(error)),
          error.known ? el("p", {}, `Known: ${error.known.join(", ")}`) : null, el("p", {}, el("a", { class: "rl-button rl-primary", href: rl2f.links.fresh() }, "Start from a preset"))));
        return;
      }
      Object.assign(this, { start, key: start.source.clone ? `clone:${start.source.clone}` : `preset:${start.source.preset}` });
      this.specs.set(start.kind, start.spec);
      this.draw();
      this.version++;
      const draft = drafts.get(this.key);
      this.take(start, "yaml");
      if (draft && (draft.mode === "yaml" ? draft.yaml !== start.yaml : JSON.stringify(draft.data) !== JSON.stringify(start.data))) await this.restore(draft);
      this.watch(preflight ?? null);
    }

    async restore(draft) {
      this.version++;
      this.mode = draft.mode;
      if (draft.mode === "yaml") this.area.value = draft.yaml;
      else { this.data = draft.data; this.area.value = draft.text ?? this.area.value; }
      await this.validate();
      if (draft.mode === "yaml" && this.checked?.problem) this.area.value = draft.yaml;
      fill(this.notice, el("div", { class: "nr-notice", role: "status" }, el("span", {}, "Your changes from ", rl2f.time(draft.time / 1000), " are back."),
        el("button", { type: "button", class: "rl-button rl-small", onclick: () => this.discard() }, "Discard them")));
    }

    discard() {
      drafts.put(this.key, null);
      this.version++;
      fill(this.notice);
      this.take(this.start, "yaml");
      this.area.value = this.start.yaml;
      this.gutter();
    }

    go(preset, clone) {
      setQuery({ preset, clone, preflight: null }, { push: true });
      this.load();
    }

    // -- the page --------------------------------------------------------------------------------------------------
    draw() {
      const { start } = this, { source } = start;
      const file = (preset) => preset.name.split(":")[0], spaced = (name) => name.replaceAll("_", " ").replaceAll("-", " · ");
      const families = [...new Set(start.presets.map(file))].map((name) => start.presets.filter((p) => file(p) === name));
      const cells = families.find((family) => family.some((p) => p.name === source.preset)) ?? [];
      const variant = cells.length > 1 ? el("select", { id: "nr-variant", "aria-label": "Variant", onchange: (e) => this.go(e.target.value, null) },
        cells.map((p) => el("option", { value: p.name, selected: p.name === source.preset }, spaced(p.name.split(":")[1])))) : null;
      const pick = el("select", { id: "nr-source", onchange: (e) => { const [what, name] = e.target.value.split(/:(.*)/s); what === "clone" ? this.go(null, name) : this.go(name, null); } },
        [["Presets for a CPU", true], ["Presets at published scale, for a GPU", false]].map(([label, hand]) => el("optgroup", { label }, families.filter((f) => f[0].at_hand === hand).map((family) => {
          const chosen = family.find((p) => p.name === source.preset);
          return el("option", { value: `preset:${(chosen ?? family[0]).name}`, selected: Boolean(chosen) }, spaced(file(family[0])), family.length > 1 ? ` · ${family.length} variants` : "");
        }))),
        start.clones.length || source.clone ? el("optgroup", { label: "Clone a run" },
          source.clone && !start.clones.some((r) => r.run === source.clone) ? el("option", { value: `clone:${source.clone}`, selected: true }, `#${source.clone}`) : null,
          start.clones.map((r) => el("option", { value: `clone:${r.run}`, selected: source.clone === r.run }, `#${r.run} ${r.name} · ${r.environment} · ${r.status}`))) : null);
      this.kinds = el("select", { id: "nr-kind", title: "Kind of run", onchange: (e) => this.change(e.target.value) }, start.kinds.map((kind) => el("option", { value: kind }, kind)));
      const upload = el("input", { type: "file", accept: ".yaml,.yml,text/yaml", hidden: true, onchange: (e) => this.open(e.target) });
      const about = source.clone ? el("p", { class: "rl-muted nr-about" }, "A copy of ", el("a", { href: rl2f.links.run(source.clone) }, `run ${source.clone}`), ".") : el("p", { class: "rl-muted nr-about" }, rl2f.Form.words(start.presets.find((p) => p.name === source.preset)?.about ?? ""));
      this.notice = el("div", {});
      const formRoot = el("div", { class: "rf", id: "nr-form" });
      this.form = new rl2f.Form(formRoot, (data) => this.edited(data));
      this.stale = el("p", { class: "nr-stale", hidden: true, role: "status" }, "The form waits until the YAML can be read.");
      this.area = el("textarea", { id: "nr-yaml", class: "nr-yaml", spellcheck: "false", autocomplete: "off", wrap: "off", "aria-label": "YAML", oninput: () => this.typed(), onblur: () => this.tidy(), onscroll: () => { this.lines.scrollTop = this.area.scrollTop; } });
      this.lines = el("pre", { class: "nr-lines", "aria-hidden": "true" });
      this.broken = el("p", { class: "rf-error nr-broken", role: "alert" });
      this.summary = el("div", { class: "nr-summary", role: "status" });
      this.command = el("code", { class: "nr-command" });
      this.actions = {
        preflight: el("button", { type: "button", class: "rl-button", id: "nr-preflight", onclick: () => this.preflight() }, "Preflight"),
        schedule: el("button", { type: "button", class: "rl-button", id: "nr-schedule", onclick: () => this.schedule() }, "Schedule …"),
        start: el("button", { type: "button", class: "rl-button rl-primary", id: "nr-start", title: "Ctrl+Enter", onclick: () => this.launch() }, "Start now"),
      };
      this.panel = el("div", { class: "nr-preflight", id: "nr-result" });
      fill(this.root,
        el("div", { class: "rl-head" }, el("h1", {}, "New run"),
          el("label", { class: "rl-row" }, el("span", { class: "rl-muted" }, "from"), pick), variant, el("label", { class: "rl-row" }, el("span", { class: "rl-muted" }, "kind"), this.kinds),
          el("span", { class: "rl-grow" }), upload,
          el("button", { type: "button", class: "rl-button", onclick: () => upload.click() }, "Load YAML"),
          el("button", { type: "button", class: "rl-button", id: "nr-save", onclick: () => this.save() }, "Save YAML")),
        about, this.notice,
        el("div", { class: "nr-columns" },
          el("div", { class: "nr-left" }, this.stale, formRoot),
          el("div", { class: "nr-right" },
            el("div", { class: "rl-card nr-act" }, this.summary, el("div", { class: "nr-buttons" }, this.actions.preflight, this.actions.schedule, this.actions.start)),
            this.panel,
            el("details", { class: "rl-card nr-code", open: true },
              el("summary", {}, el("h2", {}, "YAML"), el("span", { class: "rl-muted rl-small" }, "edit here or in the form")),
              el("div", { class: "nr-cmdline" }, this.command, el("button", { type: "button", class: "rl-button rl-small", id: "nr-copy", onclick: () => this.copy(this.command.textContent, "The command is copied. It wants the saved YAML beside it.") }, "Copy command"),
                el("button", { type: "button", class: "rl-button rl-small", onclick: () => this.copy(this.text(), "The YAML is copied.") }, "Copy YAML")),
              this.broken, el("div", { class: "nr-editor" }, this.lines, this.area)))));
      if (matchMedia("(max-width: 900px)").matches) this.root.querySelector(".nr-code").open = false;
      if (rl2f.readOnly) for (const button of Object.values(this.actions)) Object.assign(button, { disabled: true, title: "This server is read-only." });
    }

    // -- edits -----------------------------------------------------------------------------------------------------
    edited(data) {
      this.data = data;
      this.changed("form", FORM_WAIT);
    }

    typed() {
      this.gutter();
      this.changed("yaml", YAML_WAIT);
    }

    changed(mode, wait) {
      this.version++;
      this.mode = mode;
      drafts.put(this.key, mode === "yaml" ? { mode, yaml: this.area.value } : { mode, data: this.data, text: this.area.value });
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.validate().catch(() => {}), wait);
    }

    body() {
      const parent = this.start.source.clone ?? null;
      return this.mode === "yaml" ? { yaml: this.area.value, parent } : { data: this.data, text: this.area.value, parent };
    }

    /** Ask the server what it amounts to. True where nothing was edited meanwhile. */
    async validate(more = {}) {
      clearTimeout(this.timer);
      const version = this.version, mode = this.mode;
      const checked = await api("/api/form/validate", { body: { ...this.body(), ...more } });
      if (version !== this.version) return false;
      if (!this.specs.has(checked.kind)) this.specs.set(checked.kind, await api(`/api/form/spec?kind=${encodeURIComponent(checked.kind)}`));
      if (version !== this.version) return false;
      this.take(checked, mode);
      return true;
    }

    /** Show what the server made of it. */
    take(checked, mode) {
      const fresh = this.seen < 0 || this.checked !== checked;
      Object.assign(this, { checked, seen: this.version });
      const spec = this.specs.get(checked.kind);
      if (checked.data) {
        this.data = checked.data;
        if (fresh) this.form.show(spec, checked.data, this.start.known);
        this.data = this.form.data;
      }
      if (mode === "form" || checked === this.start) this.area.value = checked.yaml;
      this.stale.hidden = !checked.problem;
      this.form.root.classList.toggle("nr-off", Boolean(checked.problem));
      this.form.setErrors(checked.errors);
      this.kinds.value = checked.kind;
      this.command.textContent = checked.command;
      this.report();
      this.gutter();
      this.age();
      // not disabled: a click leads to what is wrong
      for (const button of Object.values(this.actions)) button.classList.toggle("nr-waits", !checked.ok);
      this.actions.preflight.hidden = !["train", "preflight"].includes(checked.kind);
    }

    /** What is wrong, in one place, each with a way to it. */
    report() {
      const { checked } = this;
      fill(this.broken);
      if (checked.problem) {
        const { line, column, message } = checked.problem;
        fill(this.broken, line ? el("button", { type: "button", class: "nr-line", onclick: () => this.toLine(line, column) }, `Line ${line}`) : null, line ? ": " : "", message);
        fill(this.summary, el("span", { class: "rl-wrong" }, "✗ The YAML cannot be read"), line ? el("span", { class: "rl-muted" }, ` (line ${line})`) : null);
        return;
      }
      if (checked.ok) { fill(this.summary, el("span", { class: "rl-right" }, "✓"), " ready"); return; }
      const list = checked.errors;
      fill(this.summary, el("div", {}, el("span", { class: "rl-wrong" }, `✗ ${list.length} ${list.length === 1 ? "thing is" : "things are"} wrong`)),
        el("ul", { class: "nr-errors" }, list.map((e) => el("li", {}, el("button", { type: "button", onclick: () => (e.path.length ? this.form.focus(e.path) : this.toLine(e.line ?? 1)) }, e.dotted || "configuration"), ` ${e.message}`,
          e.line ? el("span", { class: "rl-muted" }, ` (line ${e.line})`) : null))));
    }

    /** Line numbers, with those that hold an error marked. */
    gutter() {
      const count = this.area.value.split("\n").length;
      const current = this.seen === this.version && this.checked;
      const bad = new Set(current ? [...this.checked.errors.map((e) => e.line), this.checked.problem?.line] : []);
      fill(this.lines, Array.from({ length: count }, (_, i) => (bad.has(i + 1) ? el("b", {}, `${i + 1}\n`) : `${i + 1}\n`)));
      this.lines.scrollTop = this.area.scrollTop;
    }

    toLine(line, column = 1) {
      const rows = this.area.value.split("\n"), from = rows.slice(0, line - 1).reduce((sum, row) => sum + row.length + 1, 0);
      this.area.closest("details").open = true;
      this.area.focus();
      this.area.setSelectionRange(from, from + (rows[line - 1]?.length ?? 0));
      this.area.scrollTop = Math.max(0, (line - 5) * 18);
      if (column === null) this.area.scrollLeft = 0;
    }

    /** When the caret leaves the YAML and it is right, it takes the form in which it is saved and run. */
    async tidy() {
      if (this.mode !== "yaml") return;
      if (this.seen !== this.version && !(await this.validate().catch(() => false))) return;
      if (this.mode === "yaml" && this.checked.ok && document.activeElement !== this.area) {
        this.area.value = this.checked.yaml;
        this.gutter();
      }
    }

    async change(kind) {
      if (this.mode === "yaml" && this.checked.problem) { this.kinds.value = this.checked.kind; toast("Mend the YAML first.", { kind: "error" }); return; }
      if (this.mode === "yaml") this.mode = "form";
      this.version++;
      if (await this.validate({ kind })) this.changed("form", FORM_WAIT);
    }

    /** The YAML as it is run, or the text as it stands where it is broken. */
    text() {
      return this.seen === this.version && this.checked.ok ? this.checked.yaml : this.area.value;
    }

    // -- files and clipboard ---------------------------------------------------------------------------------------
    async open(input) {
      const file = input.files[0];
      input.value = "";
      if (!file) return;
      const most = this.start.max_characters, text = await file.slice(0, 4 * most + 4).text(); // at most 4 bytes a character
      if (text.length > most) { toast("That file is too large for a configuration.", { kind: "error" }); return; }
      this.area.value = text;
      this.changed("yaml", 0);
      if (await this.validate()) await this.tidy();
      toast(`${file.name} is loaded.`);
    }

    async save() {
      if (this.seen !== this.version) await this.validate();
      const link = el("a", { download: this.checked.file });
      link.href = URL.createObjectURL(new Blob([this.text()], { type: "application/yaml" }));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    }

    async copy(text, said) {
      try {
        await navigator.clipboard.writeText(text);
      } catch { // a page that is not on loopback or https has no clipboard of its own
        const area = el("textarea", { value: text, style: { position: "fixed", opacity: "0" } });
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      toast(said);
    }

    // -- what is done with it --------------------------------------------------------------------------------------
    /** Send what is on the page; false where it is not right yet, in which case the first error has the caret. */
    async ready() {
      if (rl2f.readOnly) return false;
      if (this.seen !== this.version) await this.validate();
      if (this.checked.ok) return true;
      if (this.checked.problem) this.toLine(this.checked.problem.line ?? 1);
      else { const at = this.checked.errors.find((e) => e.path.length); if (at) this.form.focus(at.path); }
      toast(this.checked.problem ? "The YAML cannot be read yet." : "Some fields are not right yet.", { kind: "error" });
      return false;
    }

    async busy(button, run) {
      if (button.disabled) return;
      button.disabled = true;
      try { await run(); } catch (error) { if (!(error instanceof rl2f.Failure)) throw error; } finally { button.disabled = rl2f.readOnly; }
    }

    launch() {
      return this.busy(this.actions.start, async () => {
        if (!(await this.ready())) return;
        const { url } = await api("/api/form/launch", { body: this.body() });
        drafts.put(this.key, null);
        location.assign(url);
      });
    }

    // -- preflight -------------------------------------------------------------------------------------------------
    preflight() {
      return this.busy(this.actions.preflight, async () => {
        if (!["train", "preflight"].includes(this.checked.kind)) { toast("Only a training run has a preflight."); return; }
        if (!(await this.ready())) return;
        const { run } = await api("/api/form/preflight", { body: this.body() });
        setQuery({ preflight: run });
        this.watch(run);
        this.panel.scrollIntoView({ block: "nearest" });
      });
    }

    /** Follow a preflight until it ends. */
    watch(run) {
      this.following?.stop();
      this.following = this.shown = this.older = null;
      fill(this.panel);
      if (!run) return;
      this.following = rl2f.poll(async () => {
        let now;
        try {
          now = await api(`/api/form/preflight/${encodeURIComponent(run)}`, { quiet: true });
        } catch (error) {
          if (error.status !== 404 && error.status !== 400) return;
          this.following?.stop();
          setQuery({ preflight: null });
          fill(this.panel);
          return;
        }
        if (now.ended) this.following?.stop();
        if (JSON.stringify(now) === JSON.stringify(this.shown)) return;
        this.shown = now;
        this.result(now);
      }, POLL);
    }

    result(now) {
      const close = el("button", { type: "button", class: "rl-icon", title: "Close", "aria-label": "Close the preflight", onclick: () => { setQuery({ preflight: null }); this.watch(null); } }, "×");
      const head = el("div", { class: "rl-row" }, el("h2", {}, "Preflight"), now.verdict ? null : rl2f.badge(now.status, now.detail), el("span", { class: "rl-grow" }), el("a", { class: "rl-small", href: rl2f.links.run(now.run) }, `run ${now.run}`), close);
      this.plot?.remove();
      this.plot = this.older = null;
      if (!now.verdict) {
        const share = now.total ? Math.min(1, now.done / now.total) : 0;
        fill(this.panel, el("div", { class: "rl-card rl-stack", dataset: { status: now.status } }, head,
          now.ended ? el("p", { class: now.status === "failed" ? "rl-wrong" : "rl-muted" }, now.status === "failed" ? "✗ It failed. " : "It was ended before it was done. ", now.detail)
            : [el("div", { class: "rl-progress", dataset: now.total ? {} : { unknown: "" } }, el("i", { style: now.total ? { width: `${100 * share}%` } : {} })),
              el("div", { class: "rl-row rl-small rl-muted" }, el("span", { class: "rl-num" }, now.status === "queued" ? "waits in the queue" : `${now.phase || "loads the model"}${now.total ? ` ${now.done} of ${now.total}` : ""}`), el("span", { class: "rl-grow" }),
                el("button", { type: "button", class: "rl-button rl-small", onclick: () => api(`/api/form/preflight/${now.run}/abort`, { body: {} }).then(() => this.following?.now(), () => {}) }, "Cancel"))]));
        return;
      }
      const { verdict, facts } = now;
      this.plot = new rl2f.charts.Plot(this.root.dataset.plotly, null);
      this.older = el("p", { class: "rl-small nr-older", hidden: true }, "The form has changed since.");
      fill(this.panel, el("div", { class: "rl-card rl-stack", dataset: { status: now.status } }, head, this.older,
        el("p", { class: `nr-verdict ${verdict.ok ? "rl-right" : "rl-wrong"}` }, verdict.ok ? "✓ " : "✗ ", verdict.text),
        verdict.fix ? el("p", { class: "nr-fix" }, verdict.fix) : null, verdict.note ? el("p", { class: "rl-muted rl-small nr-fix" }, verdict.note) : null,
        this.plot.node,
        el("p", { class: "rl-small rl-muted nr-legend" }, el("span", { class: "rl-wrong" }, "✗ all wrong"), el("span", { class: "nr-mixed" }, "■ mixed: these teach"), el("span", { class: "rl-right" }, "✓ all right")),
        el("dl", { class: "nr-facts" }, facts.map((f) => [el("dt", {}, f.label), el("dd", {}, el("b", { class: "rl-num" }, f.value), " ", el("span", { class: "rl-muted" }, f.note))])),
        el("details", {}, el("summary", { class: "rl-small rl-muted" }, "the report as text"), el("pre", { class: "rl-model-text" }, now.text))));
      this.plot.set(now.figure, `Histogram: ${now.figure.data.flatMap((part) => part.y.map((n, i) => `${n} groups with ${part.x[i]} solved`)).join(", ")}`);
      this.age();
    }

    /** Say where the preflight was of other settings than the form has now. */
    age() {
      const essence = (text) => text.replace(/^(name|kind): .*\n/gm, "");
      if (this.older && this.checked?.ok) this.older.hidden = essence(this.shown.yaml) === essence(this.checked.resolved);
    }

    // -- schedule --------------------------------------------------------------------------------------------------
    schedule() {
      return this.busy(this.actions.schedule, async () => {
        if (!(await this.ready())) return;
        const zones = await api("/api/form/timezones");
        new Plan(this, zones).open();
      });
    }
  }

  /** The dialog in which a time is chosen; it shows the next times as they come out at the server. */
  class Plan {
    constructor(page, zones) {
      this.page = page;
      const soon = new Date(Date.now() + 3600e3 - new Date().getTimezoneOffset() * 60e3).toISOString().slice(0, 16);
      const here = Intl.DateTimeFormat().resolvedOptions().timeZone;
      const listen = { oninput: () => this.ask() };
      this.name = el("input", { type: "text", id: "nr-plan-name", value: page.checked.data.name ?? "run", maxlength: 100 });
      this.once = el("input", { type: "radio", name: "nr-trigger", value: "at", checked: true, onchange: () => this.ask() });
      this.often = el("input", { type: "radio", name: "nr-trigger", value: "cron", onchange: () => this.ask() });
      this.at = el("input", { type: "datetime-local", class: "rl-field", id: "nr-plan-at", value: soon, "aria-label": "time", ...listen });
      this.cron = el("input", { type: "text", class: "rl-mono", id: "nr-plan-cron", value: "0 2 * * *", "aria-label": "cron fields", spellcheck: "false", ...listen });
      this.zone = el("input", { type: "text", id: "nr-plan-zone", list: "nr-zones", value: zones.includes(here) ? here : "UTC", spellcheck: "false", ...listen });
      this.next = el("div", { class: "nr-next", role: "status" });
      this.save = el("button", { type: "button", class: "rl-button rl-primary", id: "nr-plan-save", onclick: () => this.send() }, "Schedule");
      const cases = [["every hour", "0 * * * *"], ["every night", "0 2 * * *"], ["every Monday", "0 9 * * mon"]];
      this.box = el("dialog", { class: "rl-dialog rl-page nr-plan" }, el("h2", {}, "Schedule this run"),
        el("label", { for: "nr-plan-name" }, "name"), this.name,
        el("div", { class: "nr-choice" }, el("label", { class: "rf-check" }, this.once, "once, at"), this.at),
        el("div", { class: "nr-choice" }, el("label", { class: "rf-check" }, this.often, "again and again"), this.cron),
        el("p", { class: "rl-row rl-small" }, cases.map(([text, value]) => el("button", { type: "button", class: "rl-button rl-small", onclick: () => { this.often.checked = true; this.cron.value = value; this.ask(); } }, text)), el("span", { class: "rl-muted" }, "minute hour day month weekday")),
        el("label", { for: "nr-plan-zone" }, "time zone"), this.zone, el("datalist", { id: "nr-zones" }, zones.map((zone) => el("option", { value: zone }))),
        this.next,
        el("div", { class: "rl-actions" }, el("button", { type: "button", class: "rl-button", onclick: () => this.box.close() }, "Cancel"), this.save));
      this.box.addEventListener("close", () => this.box.remove());
    }

    open() {
      document.body.append(this.box);
      this.box.showModal();
      this.ask();
    }

    body() {
      const cron = this.often.checked;
      return { trigger: cron ? "cron" : "at", when: cron ? this.cron.value : this.at.value, timezone: this.zone.value };
    }

    async ask() {
      this.at.disabled = this.often.checked;
      this.cron.disabled = this.once.checked;
      const asked = (this.asked = JSON.stringify(this.body()));
      try {
        const { times, problem } = await api("/api/form/times", { body: this.body(), quiet: true });
        if (asked !== this.asked) return;
        this.save.disabled = Boolean(problem);
        if (problem) { fill(this.next, el("p", { class: "rf-error", role: "alert" }, `${problem.what} ${problem.fix ?? ""}`)); return; }
        fill(this.next, el("p", { class: "rl-muted rl-small" }, times.length > 1 ? "next times" : "time"), el("ol", {}, times.map((t) => el("li", { class: "rl-num" }, wall(t, this.zone.value), " ", el("span", { class: "rl-muted" }, rl2f.ago(Date.parse(t) / 1000))))));
      } catch (error) {
        if (asked !== this.asked) return;
        this.save.disabled = true;
        fill(this.next, el("p", { class: "rf-error", role: "alert" }, error.what ?? "The server does not answer.", error.fix ? ` ${error.fix}` : ""));
      }
    }

    async send() {
      this.save.disabled = true;
      try {
        const { times, url } = await api("/api/form/schedule", { body: { ...this.page.body(), ...this.body(), name: this.name.value }, quiet: true });
        this.box.close();
        toast(`Scheduled: ${wall(times[0], this.zone.value)}.`, { action: { label: "See schedules", run: () => location.assign(url) }, ms: 12000 });
      } catch (error) {
        fill(this.next, el("p", { class: "rf-error", role: "alert" }, error.what ?? String(error), error.value ? ` ${error.value}` : "", error.fix ? ` ${error.fix}` : ""));
        this.save.disabled = false;
      }
    }
  }

  const wall = (iso, timeZone) => new Date(iso).toLocaleString(undefined, { timeZone, weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", timeZoneName: "short" });
})();
