"use strict";
/* Page Exports: a form that makes data sets of runs, exports at work, and finished ones with their files. */
rl2f.widget("exports", (root) => {
  const { el, fill, api, links, time, num, duration, badge, toast, confirm } = rl2f;
  const ALL = ["stepwise_supervision", "unpaired_preference", "preference", "messages"];
  const PLAIN = { runs: "", name: "", formats: ALL.join(","), files: "jsonl,parquet", labels: "both", labeller: "", phase: "", stage: "", steps: "", checkpoint: "", control: "", without_controls: "", labelled: "", match: "task", pairs: "1", seed: "0", privileged: "" };
  const STEPS = /^\s*(\d{1,9})?\s*(?:(–|-|\.\.)\s*(\d{1,9})?)?\s*$/;
  const FLAGS = new Set(["without_controls", "labelled", "privileged"]);
  let values = {}, choices = null, counted = null, shown = null, drawn = "";

  /* ---- Address: what differs from the plain form ---- */
  const readAddress = () => {
    const query = rl2f.query();
    values = Object.fromEntries(Object.entries(PLAIN).map(([name, plain]) => [name, query[name] ?? plain]));
    if (!query.runs && query.run) values.runs = query.run;
  };
  const writeAddress = () => rl2f.setQuery({ run: null, ...Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value === PLAIN[name] ? null : value])) });
  const runs = () => values.runs.split(",").filter((part) => /^\d{1,9}$/.test(part)).map(Number);
  const several = (name) => values[name].split(",").filter(Boolean);
  function range() {
    const [, low, dash, high] = STEPS.exec(values.steps) ?? [];
    return { step_from: low ? Number(low) : null, step_to: dash ? (high ? Number(high) : null) : low ? Number(low) : null };
  }
  function chosen() {
    const { step_from, step_to } = range();
    const out = { runs: runs().join(","), phase: values.phase, stage: values.stage, step_from, step_to, checkpoint: values.checkpoint, control: values.control, without_controls: values.without_controls === "1", labelled: values.labelled === "1" };
    return new URLSearchParams(Object.entries(out).filter(([, value]) => value !== null && value !== "").map(([name, value]) => [name, String(value)]));
  }
  /** The export as the server and a YAML file have it. */
  function config() {
    const { step_from, step_to } = range();
    return {
      name: values.name.trim() || suggested(), seed: Number(values.seed) || 0, runs: runs(), formats: several("formats"), files: several("files"),
      labels: values.labels, labeller: values.labels === "detector" ? "" : values.labeller,
      filter: { phase: values.phase, stage: values.stage, step_from, step_to, checkpoint: values.checkpoint, control: values.control, without_controls: values.without_controls === "1", labelled: values.labelled === "1" },
      match: values.match, pairs_per_leak: Number(values.pairs) || 1, privileged: values.privileged === "1",
    };
  }
  const suggested = () => (runs().length === 1 ? `hints of run ${runs()[0]}` : runs().length ? `hints of runs ${runs().join(" ")}`.slice(0, 100) : "export");
  function command() {
    const made = config(), plain = (name) => values[name] === PLAIN[name];
    const quoted = (text) => (/^[A-Za-z0-9@._:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const parts = ["rl2f export", ...made.runs, "--out", quoted(made.name.replaceAll(/[^A-Za-z0-9._-]+/g, "-"))];
    if (!plain("formats")) for (const name of made.formats) parts.push("--format", name);
    if (!plain("files")) for (const name of made.files) parts.push("--file", name);
    for (const [name, option] of [["labels", "--labels"], ["labeller", "--labeller"], ["phase", "--phase"], ["stage", "--stage"], ["steps", "--steps"], ["checkpoint", "--checkpoint"], ["control", "--control"], ["match", "--match"], ["pairs", "--pairs"], ["seed", "--seed"]]) {
      if (!plain(name)) parts.push(option, quoted(name === "steps" ? values.steps.replace(/\s/g, "").replace(/–|\.\./, "-") : values[name]));
    }
    for (const name of FLAGS) if (values[name] === "1") parts.push(`--${name.replaceAll("_", "-")}`);
    return parts.join(" ");
  }

  /* ---- Frame ---- */
  const form = el("form", { class: "rl-card ex-form", "aria-label": "new export", onsubmit: (event) => { event.preventDefault(); start(); } });
  const work = el("div", { class: "rl-stack", "aria-live": "polite" });
  const list = el("div", { class: "rl-stack" });
  fill(root, el("div", { class: "rl-head" }, el("h1", {}, "Exports"), el("span", { class: "rl-muted" }, "Leak-labelled dialogues as data sets in TRL's types.")),
    el("div", { class: "ex-main" }, form, el("section", { class: "rl-stack ex-side", "aria-label": "exports" }, work, list)));
  fill(form, el("div", { class: "rl-skeleton", style: { height: "240px" } }));

  /* ---- Form ---- */
  const set = (changes, redraw = true) => { Object.assign(values, changes); writeAddress(); if (redraw) draw(); recount(); };
  const field = (title, input, help = null, more = {}) => el("label", { class: "ex-field", ...more }, el("span", { class: "ex-name" }, title), input, help ? el("span", { class: "rl-muted rl-small" }, help) : null);
  const select = (name, options, any = null) => {
    const known = options.some(([value]) => value === values[name]);
    return el("select", { class: "rl-field", name, onchange: (event) => set({ [name]: event.target.value }) },
      any === null ? null : el("option", { value: "" }, any), known || !values[name] ? null : el("option", { value: values[name], selected: true }, values[name]),
      options.map(([value, text]) => el("option", { value, selected: value === values[name] }, text)));
  };
  const text = (name, more = {}) => el("input", { type: "text", class: "rl-field", name, value: values[name], oninput: (event) => { set({ [name]: event.target.value }, false); touch(); }, ...more });
  /** What follows from a text, without a redraw: that would swallow the click that ends the typing. */
  function touch() {
    const unsteady = Boolean(values.steps) && !STEPS.test(values.steps);
    const steps = form.querySelector("input[name=steps]");
    if (unsteady) steps.setAttribute("aria-invalid", "true"); else steps.removeAttribute("aria-invalid");
    form.querySelector(".ex-unsteady").hidden = !unsteady;
    form.querySelector("input[name=name]").placeholder = suggested();
    fill(form.querySelector(".ex-told"), runs().length ? command() : "rl2f export RUN --out DIR");
  }
  const flag = (name, title, help) => el("label", { class: "ex-check" }, el("input", { type: "checkbox", class: "ex-box", name, checked: values[name] === "1", onchange: (event) => set({ [name]: event.target.checked ? "1" : "" }) }), el("span", {}, title, help ? el("small", { class: "rl-muted" }, help) : null));
  const member = (name, value, title, help) => el("label", { class: "ex-check" }, el("input", {
    type: "checkbox", class: "ex-box", name, value, checked: several(name).includes(value),
    onchange: (event) => { const order = name === "formats" ? choices.formats.map((each) => each.name) : PLAIN[name].split(","); set({ [name]: order.filter((each) => (each === value ? event.target.checked : several(name).includes(each))).join(",") }); },
  }), el("span", {}, title, help ? el("small", { class: "rl-muted" }, help) : null));
  const one = (name, value, title, help) => el("label", { class: "ex-check" }, el("input", { type: "radio", class: "ex-box", name, value, checked: values[name] === value, onchange: () => set({ [name]: value }) }), el("span", {}, title, help ? el("small", { class: "rl-muted" }, help) : null));
  const same = (options) => options.map((value) => [value, value]);

  function runPicker() {
    const byId = new Map((choices?.runs ?? []).map((run) => [run.id, run]));
    const left = (choices?.runs ?? []).filter((run) => !runs().includes(run.id));
    return el("div", { class: "ex-field" }, el("span", { class: "ex-name" }, "Runs"),
      el("div", { class: "rl-row" }, runs().map((id) => el("span", { class: "rl-chip ex-run" }, el("a", { href: links.run(id) }, `${id}${byId.has(id) ? ` · ${byId.get(id).name}` : ""}`),
        el("button", { type: "button", class: "rl-icon", "aria-label": `leave out run ${id}`, onclick: () => choose(runs().filter((each) => each !== id)) }, "×"))),
      el("select", { class: "rl-field", "aria-label": "add a run", name: "add_run", disabled: !left.length, onchange: (event) => choose([...runs(), Number(event.target.value)]) },
        el("option", { value: "" }, runs().length ? "add another…" : "choose a run…"), left.map((run) => el("option", { value: run.id }, `${run.id} · ${run.name}${run.kind === "train" ? "" : ` (${run.kind})`}`)))));
  }
  async function choose(ids) { values.runs = ids.join(","); writeAddress(); await offer(); }

  function draw() {
    const facets = choices?.facets ?? { phases: [], stages: [], checkpoints: [], controls: [], steps: 0 };
    const focused = document.activeElement, name = form.contains(focused) ? focused.getAttribute("name") : null, value = focused?.getAttribute?.("value"), at = focused?.type === "text" ? focused.selectionStart : null;
    const more = ["match", "pairs", "seed", "privileged"].filter((each) => values[each] !== PLAIN[each]).length;
    const narrowed = ["phase", "stage", "steps", "checkpoint", "control", "without_controls", "labelled"].filter((each) => values[each] !== PLAIN[each]).length;
    const open = (part, otherwise) => form.querySelector(`details[data-part="${part}"]`)?.open ?? otherwise;
    fill(form, el("h2", {}, "New export"), runPicker(),
      el("fieldset", { class: "ex-set" }, el("legend", {}, "Data set types"), (choices?.formats ?? []).map((format) => member("formats", format.name, format.title, format.about))),
      el("fieldset", { class: "ex-set" }, el("legend", {}, "Whose label counts"),
        one("labels", "both", "People, else detectors", "A detector's finding counts where no person decided."), one("labels", "people", "People alone"), one("labels", "detector", "Detectors alone"),
        values.labels === "detector" ? null : field("labeller", select("labeller", same(choices?.labellers ?? []), "everybody, by majority"))),
      el("details", { class: "ex-fold", dataset: { part: "filter" }, open: open("filter", narrowed > 0) }, el("summary", {}, narrowed ? `Which dialogues (${narrowed})` : "Which dialogues"),
        el("div", { class: "ex-grid" }, field("phase", select("phase", same(["train", "preflight", "evaluation", "chat", "fork", "distill"].filter((phase) => facets.phases.includes(phase))), "any")), field("stage", select("stage", same(facets.stages), "any")),
          el("div", { class: "ex-field" }, field("steps", text("steps", { placeholder: facets.steps ? `1–${facets.steps}` : "10–20", inputmode: "numeric" })), el("span", { class: "ex-unsteady rl-wrong rl-small", role: "alert", hidden: true }, "One step, or a range such as 10–20.")),
          field("checkpoint", select("checkpoint", same(facets.checkpoints), "any")), field("control", select("control", same(facets.controls), "any"))),
        flag("without_controls", "Leave out controls", "Contentless, foreign and misleading hints leak nothing, yet are no good hints."), flag("labelled", "Only dialogues that a person labelled")),
      el("details", { class: "ex-fold", dataset: { part: "more" }, open: open("more", more > 0) }, el("summary", {}, more ? `More (${more})` : "More"),
        field("name", text("name", { placeholder: suggested(), maxlength: 100 }), "Title of the data-set card."),
        el("fieldset", { class: "ex-set" }, el("legend", {}, "Files"), el("div", { class: "rl-row" }, member("files", "jsonl", "JSON lines"), member("files", "parquet", "Parquet"))),
        el("div", { class: "ex-grid" }, field("a pair shares", select("match", [["task", "the task"], ["attempt", "the attempt"], ["history", "all before it"]])), field("pairs for a leak", text("pairs", { inputmode: "numeric" })), field("seed", text("seed", { inputmode: "numeric" }))),
        flag("privileged", "Show the answer in the prompts", "For teachers and judges alone."),
        values.privileged === "1" ? el("p", { class: "ex-warning", role: "alert" }, "⚑ Every prompt will hold the answer. A student that is trained on it learns to read answers that it will not have.") : null),
      el("p", { class: "ex-count", "aria-live": "polite" }),
      el("div", { class: "rl-row" }, rl2f.readOnly ? el("span", { class: "rl-muted" }, "This server only reads.") : el("button", { type: "submit", class: "rl-button rl-primary" }, "Export"),
        el("details", { class: "ex-command" }, el("summary", { class: "rl-muted rl-small" }, "Command"), copyable("", "ex-told"))));
    touch();
    showCount();
    if (name) { const again = [...form.querySelectorAll(`[name="${CSS.escape(name)}"]`)]; const node = again.find((each) => each.getAttribute("value") === value) ?? again[0]; node?.focus(); if (at !== null && node?.type === "text") node.setSelectionRange(at, at); }
  }
  function copyable(content, more = "") {
    const code = el("code", { class: `rl-mono ${more}` }, content);
    const button = el("button", { type: "button", class: "rl-button rl-small", onclick: async () => { try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); } catch { toast("The browser did not let us copy.", { kind: "error" }); } } }, "Copy");
    return el("div", { class: "ex-code" }, code, button);
  }
  function showCount() {
    const node = form.querySelector(".ex-count");
    const button = form.querySelector("button[type=submit]");
    const nothing = !several("formats").length ? "Choose at least one type." : !several("files").length ? "Choose at least one kind of file." : !runs().length ? "Choose a run." : null;
    if (node) {
      if (nothing) fill(node, nothing);
      else if (!counted) fill(node, "…");
      else fill(node, el("b", { class: "rl-num" }, num(counted.dialogues)), " dialogues, ", el("b", { class: "rl-num" }, num(counted.labelled)), " of them labelled by people");
      if (!nothing && counted && values.labels === "people" && !counted.labelled) node.append(". ", el("a", { href: links.labels({ run: runs()[0] }) }, "Label some first"), ".");
    }
    if (button) button.disabled = Boolean(nothing) || (counted !== null && !counted.dialogues);
  }
  let asked = 0, waiting = null;
  function recount() {
    clearTimeout(waiting);
    counted = null;
    showCount();
    if (!runs().length || (values.steps && !STEPS.test(values.steps))) return;
    const turn = ++asked;
    waiting = setTimeout(async () => {
      try { const found = await api(`/api/exports/count?${chosen()}`, { quiet: true }); if (turn === asked) { counted = found; showCount(); } } catch (error) { if (turn === asked && error.what) fill(form.querySelector(".ex-count"), error.what); }
    }, 150);
  }
  async function offer() {
    try { choices = await api(`/api/exports/choices?${new URLSearchParams({ runs: runs().join(",") })}`); } catch (error) {
      if (error.status !== 404) throw error;
      values.runs = "";  // a link to a run that is gone; the toast says so
      writeAddress();
      choices = await api("/api/exports/choices");
    }
    draw();
    recount();
  }
  async function start() {
    const button = form.querySelector("button[type=submit]");
    button.disabled = true;
    try { const made = await api("/api/exports", { body: config() }); toast(`Export ${made.run} is in the queue.`); await refresh(); } catch (error) { if (!(error instanceof rl2f.Failure)) throw error; } finally { showCount(); }
  }

  /* ---- Exports ---- */
  const size = (bytes) => { for (const unit of ["B", "kB", "MB", "GB"]) { if (bytes < 1000) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`; bytes /= 1000; } return `${bytes.toFixed(1)} TB`; };
  const act = (what, body) => async () => { try { await api(`/api/exports/${what}`, { body }); } catch (error) { if (!(error instanceof rl2f.Failure)) throw error; } await refresh(); };
  function job(row) {
    const share = row.total ? Math.min(100, (100 * row.done) / row.total) : null;
    return el("article", { class: "rl-card rl-stack ex-job", dataset: { run: row.run } }, el("div", { class: "rl-row" }, badge(row.status), el("a", { class: "rl-grow rl-cut", href: row.url }, row.name), time(row.ended ?? row.created)),
      ["starting", "running", "stopping"].includes(row.status) ? [el("div", { class: "rl-progress", dataset: share === null ? { unknown: "" } : {}, role: "progressbar", "aria-valuenow": share === null ? null : Math.round(share) }, el("i", { style: share === null ? {} : { width: `${share}%` } })),
        el("span", { class: "rl-muted rl-small rl-num" }, row.total ? `${num(row.done)} of ${num(row.total)}${row.phase === "pairs" ? " leaking hints paired" : " dialogues"}` : row.phase || "starting", row.eta ? ` · ${duration(row.eta)} left` : "")] : null,
      row.status === "failed" && row.detail ? el("p", { class: "ex-detail" }, row.detail) : null,
      rl2f.readOnly ? null : el("div", { class: "rl-row" }, ["queued", "starting", "running"].includes(row.status) ? el("button", { type: "button", class: "rl-button rl-small", onclick: act("stop", { run: row.run }) }, "Stop") : null,
        ["failed", "stopped", "interrupted"].includes(row.status) ? [el("button", { type: "button", class: "rl-button rl-small", onclick: act("again", { run: row.run }) }, "Try again"), el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: act("forget", { run: row.run }) }, "Dismiss")] : null));
  }
  function labels(found) {
    if (!found) return null;
    const part = (who, counts) => (counts && (counts.leak || counts.no_leak) ? `${who}: ${num(counts.leak ?? 0)} leak, ${num(counts.no_leak ?? 0)} no leak` : null);
    const without = Object.entries(found.without ?? {}).map(([why, count]) => `${num(count)} ${why}`);
    return [`${num(found.hints)} hints`, part("people", found.people), part("detectors", found.detector), ...without].filter(Boolean).join(" · ");
  }
  function finished(row) {
    const first = row.formats[0];
    const files = new Map(row.files.map((file) => [file.name, file]));
    const link = (name, title) => (files.has(name) ? el("a", { href: files.get(name).url, download: "", title: `${name}, ${size(files.get(name).bytes)}` }, title, el("span", { class: "rl-muted rl-num ex-size" }, ` ${size(files.get(name).bytes)}`)) : null);
    const known = (run) => (/^\d+$/.test(run.run) ? el("a", { href: links.run(run.run) }, `${run.run} · ${run.name}`) : el("span", {}, run.name));
    return el("article", { class: "rl-card rl-stack ex-done", dataset: { folder: row.folder } },
      el("div", { class: "rl-row" }, el("span", { class: "rl-grow rl-cut", title: row.folder }, el("b", {}, row.name), row.run ? [" ", el("a", { class: "rl-small", href: links.run(row.run) }, `run ${row.run}`)] : null), row.privileged ? el("span", { class: "rl-chip rl-leak", title: "Every prompt holds the answer." }, "⚑ shows answers") : null, el("span", { class: "rl-muted rl-num" }, size(row.bytes)), el("span", { class: "rl-muted" }, time(row.created))),
      el("div", { class: "rl-muted rl-small" }, "from ", row.runs.flatMap((run, i) => (i ? [", ", known(run)] : [known(run)])), row.dialogues === null ? null : ` · ${num(row.dialogues)} dialogues · `, labels(row.labels)),
      el("div", { class: "rl-scroll" }, el("table", { class: "rl-table" }, el("thead", {}, el("tr", {}, el("th", {}, "type"), el("th", { class: "rl-num" }, "rows"), el("th", {}, "JSON lines"), el("th", {}, "Parquet"))),
        el("tbody", {}, row.formats.map((format) => el("tr", {}, el("td", {}, format.name), el("td", { class: "rl-num" }, num(format.rows)), el("td", {}, link(`${format.name}.jsonl`, "download") ?? "–"), el("td", {}, link(`${format.name}.parquet`, "download") ?? "–")))))),
      Object.entries(row.left_out).map(([name, why]) => el("p", { class: "rl-muted rl-small ex-left" }, `No ${name}: ${why}`)),
      el("div", { class: "rl-row rl-small" }, link("README.md", "card"), link("manifest.json", "manifest"), el("span", { class: "rl-grow" }),
        el("details", { class: "ex-command" }, el("summary", { class: "rl-muted" }, "Load it"), copyable(`from datasets import load_dataset\nrows = load_dataset(${JSON.stringify(row.path)}, "${first.name}", split="train")`)),
        rl2f.readOnly ? null : el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: () => remove(row) }, "Delete")));
  }
  async function remove(row) {
    if (await confirm({ title: "Delete this export?", text: `${row.name}: ${row.files.length} files, ${size(row.bytes)}. The runs stay.` })) await act("remove", { folder: row.folder })();
  }
  async function refresh() {
    shown = await api("/api/exports", { quiet: true });
    const now = JSON.stringify(shown);
    if (now === drawn) return;
    const open = new Set([...list.querySelectorAll("details[open]")].map((node) => node.closest("[data-folder]")?.dataset.folder));
    drawn = now;
    const jobs = [...shown.at_work, ...shown.failed];
    fill(work, jobs.length ? [el("h2", {}, "At work and ended early"), jobs.map(job)] : null);
    fill(list, el("h2", {}, "Finished"), shown.finished.length ? shown.finished.map(finished) : el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "No export yet"),
      el("p", {}, "Choose a run and press Export. Its dialogues become JSON lines and Parquet with a manifest and a data-set card, and can be taken from here.")));
    for (const node of list.querySelectorAll("details")) if (open.has(node.closest("[data-folder]")?.dataset.folder)) node.open = true;
  }

  readAddress();
  addEventListener("popstate", () => { readAddress(); offer(); });
  offer().catch((error) => { if (!(error instanceof rl2f.Failure)) throw error; fill(form, el("p", {}, "The form could not be loaded. Reload the page.")); });
  let timer = null;
  const pace = async () => { clearTimeout(timer); if (!document.hidden) { try { await refresh(); } catch (error) { if (!(error instanceof rl2f.Failure)) throw error; } } timer = setTimeout(pace, shown?.at_work.length ? 1500 : 6000); };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) pace(); });
  pace();
});
