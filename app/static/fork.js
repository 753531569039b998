"use strict";
/* Page Fork: a dialogue goes on after one of its attempts under other hints. What is shown stands in the address. */
rl2f.widget("fork", (root) => {
  const { el, fill, api, keys, toast, links } = rl2f;
  const { block, inline, sign, signs } = rl2f.transcript;
  const { summary, tree, named, color } = rl2f.forkResult;
  const ACTIVE = ["queued", "starting", "running", "stopping"];
  const ABOUT = {
    original: "what the student read then", edited: "your own words", empty: "an empty message", contentless: "“That is not correct. Try again.”",
    shuffled: "the hint of another task", misleading: "a hint that points away", teacher: "another teacher's message",
  };
  const PLAIN = { arms: "original,contentless,shuffled,misleading", samples: "16", attempts: "", then: "run", seed: "0" };
  let place = null, options = null, original = null, values = { ...PLAIN }, chosen = [], edited = null, teacher = "scripted";
  let fork = null, followed = null, state = { open: new Set(), changed: () => writeAddress() }, drawn = "";

  /* ---- Address ---- */
  function readAddress() {
    const query = rl2f.query();
    const turn = Number.parseInt(query.turn ?? "0", 10);
    place = query.run && query.dialogue ? { run: Number(query.run), event: query.dialogue, turn: turn > 0 ? turn : 0 } : null;
    values = Object.fromEntries(Object.entries(PLAIN).map(([name, value]) => [name, query[name] ?? value]));
    chosen = query.checkpoints ? query.checkpoints.split(",") : [];
    edited = query.text ?? null;
    teacher = query.teacher ?? "scripted";
    state.open = new Set(query.open ? query.open.split(",") : []);
    return query.fork ? Number(query.fork) : null;
  }
  function writeAddress(push = false) {
    const other = Object.fromEntries(Object.entries(values).map(([name, value]) => [name, value === PLAIN[name] ? null : value]));
    rl2f.setQuery({ run: place?.run, dialogue: place?.event, turn: place?.turn, ...other, checkpoints: chosen.join(","), fork, open: [...state.open].slice(0, 12).join(","),
      text: on("edited") && edited && edited.length < 400 ? edited : null, teacher: on("teacher") ? teacher : null }, { push });
  }
  const arms = () => values.arms.split(",").filter(Boolean);
  const on = (arm) => arms().includes(arm);
  const here = () => original?.turns[place.turn] ?? null;
  const hintHere = () => here()?.hint ?? null;

  /* ---- Frame ---- */
  const top = el("div", { class: "rl-head" }), before = el("div"), form = el("form", { class: "rl-card fk-form", "aria-label": "new fork" }), result = el("section", { class: "fk-result", "aria-label": "result" }), earlier = el("section", { class: "rl-card fk-earlier", "aria-label": "forks of this dialogue" });
  const foot = el("div", { class: "fk-foot rl-muted rl-small" }, [["1", "…", "7"], "hints", ["w"], "write a hint", ["+", "−"], "samples", ["r"], "run", ["j", "k"], "dialogues", ["Enter"], "open", ["o"], "replay", ["b"], "back", ["?"], "all keys"]
    .map((part) => (Array.isArray(part) ? part.map((key) => el("kbd", {}, key)) : el("span", {}, part))));
  form.addEventListener("submit", (event) => { event.preventDefault(); run(); });

  function failed(error) {
    fill(root, el("div", { class: "rl-empty", role: "alert" }, el("p", { class: "rl-empty-title" }, error.what ?? "The page could not be shown"),
      el("p", {}, [error.value !== null && error.value !== undefined ? `Got: ${error.value}.` : "", error.fix ?? ""].filter(Boolean).join(" ")), el("p", { class: "rl-actions" }, el("a", { class: "rl-button", href: links.dialogues() }, "All dialogues"))));
    if (!(error instanceof rl2f.Failure)) console.error(error);
  }
  function nothing() {
    fill(root, el("div", { class: "rl-empty" }, el("p", { class: "rl-empty-title" }, "What if the hint had been different?"),
      el("p", {}, "Open a dialogue, go to a wrong attempt with j and k, and press f: from there it goes on under other hints, as often as you like. The original stays as it is."),
      el("p", { class: "rl-actions" }, el("a", { class: "rl-button rl-primary", href: links.dialogues() }, "Dialogues"))));
  }

  /* ---- What was said before ---- */
  function drawBefore() {
    const back = links.dialogue(place.run, place.event, place.turn);
    fill(top, el("h1", { class: "rl-title" }, "Fork"), el("a", { class: "rl-chip", href: back, title: "back to the replay (b)" }, inline(original.key, 60), ` · turn ${place.turn + 1}`), el("a", { class: "rl-chip", href: links.run(place.run) }, `run ${place.run} · `, inline(original.run_name, 40)), signs(original.outcomes));
    fill(before, el("details", { class: "rl-card fk-before", open: before.querySelector("details")?.open ?? false }, el("summary", {}, `Problem and the ${place.turn + 1} attempt${place.turn ? "s" : ""} up to here`),
      el("div", { class: "rl-stack" }, block(original.problem.text, { label: "problem" }), original.turns.slice(0, place.turn + 1).map((turn) => [
        el("div", { class: "rl-row rl-small" }, el("b", { class: "rl-student" }, `Student, turn ${turn.index + 1}`), sign(turn.sign)), block(turn.attempt, { from: "student", label: `attempt ${turn.index + 1}` }),
        turn.hint ? [el("b", { class: "rl-teacher rl-small" }, turn.index === place.turn ? "Teacher, the hint in question" : "Teacher"), block(turn.hint.read, { from: "teacher", label: `hint ${turn.index + 1}` })] : null]))));
  }

  /* ---- Form ---- */
  const set = (changes, focus = null) => { Object.assign(values, changes); writeAddress(); drawForm(focus); };
  const toggle = (arm, to = !on(arm)) => set({ arms: options.hints.filter((each) => (each === arm ? to : on(each))).join(",") }, `arm-${arm}`);
  const choose = (label, to) => { chosen = options.checkpoints.map((c) => c.label).filter((each) => (each === label ? to : chosen.includes(each))); writeAddress(); drawForm(`ck-${label}`); };
  const tick = (name, checked, change, ...words) => el("label", { class: "fk-check" }, el("input", { type: "checkbox", class: "fk-box", name, checked, onchange: (event) => change(event.target.checked) }), el("span", {}, words));
  const pick = (name, list, value, change) => el("select", { class: "rl-field", name, onchange: (event) => change(event.target.value) }, list.map(([v, text]) => el("option", { value: v, selected: v === value }, text)));
  const field = (title, input, help) => el("label", { class: "fk-field" }, el("span", { class: "rl-muted rl-small" }, title), input, help ? el("span", { class: "rl-muted rl-small" }, help) : null);
  function why() {
    const turn = here();
    if (!turn) return "The dialogue has no such turn.";
    return turn.correct ? "This attempt is right, so no hint stands after it: fork at a wrong one." : null;
  }
  function drawForm(focus = null) {
    const wanted = focus ?? (form.contains(document.activeElement) ? document.activeElement.getAttribute("name") : null);
    const wrong = why(), own = options.checkpoints.filter((c) => c.label === "base" || c.label.startsWith(`${place.run}:`));
    const stage = (c) => c.label.replace(/@\d+$/, ""), last = own.filter((c, i) => own.findIndex((o) => stage(o) === stage(c)) === i);  // newest first
    const shown = options.checkpoints.filter((c) => last.includes(c) || chosen.includes(c.label)), others = options.checkpoints.filter((c) => !shown.includes(c));
    const box = (c) => tick(`ck-${c.label}`, chosen.includes(c.label), (to) => choose(c.label, to), el("span", { class: "rl-mono" }, own.includes(c) ? c.label.replace(/^\d+:/, "") : c.label), own.includes(c) ? null : el("small", { class: "rl-muted" }, " ", c.note));
    const words = el("textarea", { class: "rl-field fk-text", name: "text", rows: 2, maxlength: 4000, "aria-label": "the edited hint", placeholder: "What should the student read?", oninput: (event) => { edited = event.target.value; } });
    words.value = edited ?? hintHere()?.read ?? "";
    words.addEventListener("change", () => writeAddress());
    words.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
    fill(form, el("h2", {}, "Go on after this attempt"),
      wrong ? el("p", { class: "rl-wrong", role: "alert" }, wrong, place.turn > 0 ? [" ", el("a", { href: links.fork(place.run, place.event, place.turn - 1) }, "The turn before")] : null) : null,
      el("fieldset", { class: "fk-set" }, el("legend", {}, "Who speaks for the student"), shown.map(box), others.length ? el("details", { class: "fk-others", open: form.querySelector(".fk-others")?.open ?? false }, el("summary", {}, `${others.length} more`), others.map(box)) : null),
      el("fieldset", { class: "fk-set" }, el("legend", {}, "What the student reads"), options.hints.map((arm, i) => [
        tick(`arm-${arm}`, on(arm), (to) => toggle(arm, to), el("kbd", {}, String(i + 1)), " ", el("i", { class: "fk-dot", style: { background: color(arm) } }), named(arm), el("small", { class: "rl-muted" }, ` ${arm === "original" && !hintHere() ? "no hint stands here" : ABOUT[arm] ?? ""}`)),
        arm === "edited" && on(arm) ? words : null, arm === "teacher" && on(arm) ? pick("teacher", options.teachers.map((t) => [t, t]), teacher, (to) => { teacher = to; writeAddress(); }) : null])),
      el("div", { class: "fk-numbers" },
        field("samples of each", el("input", { type: "text", inputmode: "numeric", class: "rl-field", name: "samples", value: values.samples, onchange: (event) => set({ samples: String(Math.min(500, Math.max(1, Number.parseInt(event.target.value, 10) || 16))) }) })),
        field("attempts after it", pick("attempts", [["", "all that are left"], ...[1, 2, 3, 4].map((n) => [String(n), String(n)])], values.attempts, (to) => set({ attempts: to }))),
        field("later hints", pick("then", [["run", "the run's teacher"], ["arm", "the arm's own"], ["contentless", "contentless"]], values.then, (to) => set({ then: to }))),
        field("seed", el("input", { type: "text", inputmode: "numeric", class: "rl-field", name: "seed", value: values.seed, onchange: (event) => set({ seed: String(Math.max(0, Number.parseInt(event.target.value, 10) || 0)) }) }))),
      el("p", { class: "rl-small rl-muted fk-count" }, `${chosen.length * arms().length * Number(values.samples)} dialogues; sample j of every hint has the same seed.`, on("contentless") ? "" : " Without contentless there is nothing to take differences to."),
      el("div", { class: "rl-row" }, rl2f.readOnly ? el("span", { class: "rl-muted" }, "This server only reads.") : el("button", { type: "submit", class: "rl-button rl-primary", name: "run", disabled: Boolean(wrong) || !chosen.length || !arms().length }, "Run")));
    if (wanted) form.querySelector(`[name="${CSS.escape(wanted)}"]`)?.focus();
  }
  async function run() {
    if (rl2f.readOnly || why() || !chosen.length || !arms().length) return;
    const text = (edited ?? hintHere()?.read ?? "").trim();
    if (on("edited") && !text) { toast("Write the hint first."); form.querySelector("[name=text]")?.focus(); return; }
    const listed = arms().map((hint) => ({ hint, ...(hint === "edited" ? { text } : {}), ...(hint === "teacher" ? { teacher } : {}) }));
    try {
      const made = await api("/api/fork", { body: { run: place.run, dialogue: place.event, turn: place.turn, checkpoints: chosen, arms: listed, samples: Number(values.samples), attempts: values.attempts ? Number(values.attempts) : null, then: values.then, seed: Number(values.seed) } });
      state.open.clear();
      document.activeElement?.blur?.();
      follow(made.run, true);
      refreshEarlier().catch(() => {});
    } catch (error) { if (!(error instanceof rl2f.Failure)) throw error; }
  }

  /* ---- Result ---- */
  function follow(id, push = false) {
    fork = id;
    drawn = "";
    writeAddress(push);
    followed?.stop();
    fill(result, el("div", { class: "rl-card rl-muted" }, "…"));
    let last = null;
    followed = rl2f.poll(async () => {
      const mine = id;
      const found = await api(`/api/fork/${mine}`, { quiet: true }).catch((error) => { if (error.status === 404) { followed.stop(); fill(result, el("div", { class: "rl-card rl-wrong" }, error.what)); } throw error; });
      if (fork !== mine) return;
      drawResult(found);
      if (last !== null && last !== found.run.status) refreshEarlier().catch(() => {});
      last = found.run.status;
      if (!ACTIVE.includes(found.run.status)) followed.stop();
    }, 700);
  }
  const status = el("div", { class: "rl-card fk-status", "aria-live": "polite" }), body = el("div");
  function drawResult(found) {
    const { run, report } = found, active = ACTIVE.includes(run.status);
    if (result.firstChild !== status) fill(result, status, body);
    const share = run.total ? Math.min(100, (100 * run.done) / run.total) : null;
    fill(status, el("div", { class: "rl-row" }, el("h2", {}, `Fork ${run.id}`), rl2f.badge(run.status, run.detail), el("span", { class: "rl-muted rl-small rl-num" }, active ? (run.status === "queued" ? "waits in the queue" : run.total ? `${rl2f.num(run.done)} of ${rl2f.num(run.total)} dialogues` : "loads the model") : report ? `${report.done} dialogues` : "", active && run.eta ? ` · ${rl2f.duration(run.eta)} left` : ""),
      el("span", { class: "rl-grow" }), el("a", { class: "rl-small", href: links.run(run.id) }, "as a run"), el("a", { class: "rl-small", href: links.dialogues({ run: run.id }) }, "its dialogues")),
    active ? el("div", { class: "rl-progress", dataset: share === null ? { unknown: "" } : {}, role: "progressbar" }, el("i", { style: share === null ? {} : { width: `${share}%` } })) : null,
    run.detail && !active && run.status !== "succeeded" ? el("p", { class: "rl-wrong rl-small" }, run.detail) : null);
    const now = JSON.stringify(report);
    if (!report || now === drawn) return;
    drawn = now;
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset?.id : null;
    const grown = tree(report, { run: run.id, turn: found.turn, original }, state);
    grown.addEventListener("fk:grown", () => { if (focused && !body.contains(document.activeElement)) focusOn(focused); });
    fill(body, el("div", { class: "rl-card" }, summary(report), el("p", { class: "rl-small rl-muted" }, `95 % intervals; ${report.samples} samples of each hint with shared seeds, differences paired. ${report.later_hints === "run" ? "Later hints are the run's teacher's in every branch." : report.later_hints === "arm" ? "Later hints are the branch's own teacher's." : "Later on nobody says anything."}`)),
      el("div", { class: "rl-card" }, el("h2", {}, "Dialogues"), grown));
    if (focused) focusOn(focused);
  }

  /* ---- Earlier forks ---- */
  async function refreshEarlier() {
    const found = await api(`/api/fork/place?${new URLSearchParams({ run: place.run, dialogue: place.event })}`, { quiet: true });
    options.forks = found.forks;
    drawEarlier();
  }
  function drawEarlier() {
    earlier.hidden = !options.forks.length;
    fill(earlier, el("h2", {}, "Forks of this dialogue"), options.forks.map((f) => el("a", { class: "fk-past", "aria-current": f.run === fork ? "true" : null, href: links.fork(place.run, place.event, f.turn, { fork: f.run }) },
      el("b", {}, `${f.run}`), rl2f.badge(f.status), el("span", {}, `turn ${f.turn + 1}`), el("span", { class: "rl-muted rl-cut rl-grow" }, inline(`${f.checkpoints.join(", ")} × ${f.arms.map(named).join(", ")} × ${f.samples}`, 160)), rl2f.time(f.created))));
  }

  /* ---- Keys ---- */
  const items = () => [...body.querySelectorAll(".fk-leaf")].filter((node) => node.offsetParent !== null);
  const focusOn = (id) => body.querySelector(`.fk-leaf[data-id="${CSS.escape(id)}"]`)?.focus();
  function move(step) {
    const list = items();
    if (!list.length) return false;
    const at = list.indexOf(document.activeElement.closest?.(".fk-leaf"));
    const next = list[at < 0 ? (step > 0 ? 0 : list.length - 1) : Math.max(0, Math.min(list.length - 1, at + step))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    return true;
  }
  const leafHere = () => document.activeElement?.closest?.(".fk-leaf");
  const samples = (factor) => set({ samples: String(Math.max(1, Math.min(500, Math.round(Number(values.samples) * factor)))) });
  keys.add("Fork", [
    { keys: ["1", "2", "3", "4", "5", "6", "7"], text: "switch a hint on or off", run: (event) => { const arm = options?.hints[Number(event.key) - 1]; if (!arm) return false; toggle(arm); } },
    { keys: ["w"], text: "write a hint of your own", run: () => { if (!options) return false; if (!on("edited")) toggle("edited"); form.querySelector("[name=text]")?.focus(); } },
    { keys: ["s"], text: "who speaks: to the checkpoints", run: () => form.querySelector("[name^='ck-']")?.focus() },
    { keys: ["+"], text: "twice the samples", run: () => samples(2) },
    { keys: ["-"], text: "half the samples", run: () => samples(0.5) },
    { keys: ["r"], text: "run", run: () => { if (!options) return false; run(); } },
    { keys: ["j", "ArrowDown"], text: "next dialogue of the tree", run: () => move(1) },
    { keys: ["k", "ArrowUp"], text: "dialogue before", run: () => move(-1) },
    { keys: ["Enter", "e"], text: "open or shut the branch", run: () => { const leaf = leafHere(); if (!leaf?.fkToggle) return false; leaf.fkToggle(); } },
    { keys: ["o"], text: "open the dialogue in the replay", run: () => { const leaf = leafHere(); const to = leaf?.dataset.href ?? leaf?.querySelector("a")?.href; if (!to) return false; location.href = to; } },
    { keys: ["b"], text: "back to the original in the replay", run: () => { if (!place) return false; location.href = links.dialogue(place.run, place.event, place.turn); } },
  ]);

  /* ---- Begin ---- */
  async function begin() {
    const shown = readAddress();
    followed?.stop();
    fork = null;
    if (!place && shown) {
      const found = await api(`/api/fork/${shown}`, { quiet: true });
      if (found.source !== null) place = { run: found.source, event: found.dialogue, turn: found.turn };
    }
    if (!place) { nothing(); return; }
    [original, options] = await Promise.all([
      api(`/api/dialogues/one?${new URLSearchParams({ run: place.run, dialogue: place.event })}`, { quiet: true }),
      api(`/api/fork/place?${new URLSearchParams({ run: place.run, dialogue: place.event })}`, { quiet: true })]);
    place.turn = Math.min(place.turn, Math.max(0, original.turns.length - 1));
    chosen = chosen.filter((label) => options.checkpoints.some((c) => c.label === label));
    if (!chosen.length) chosen = [options.default];
    if (!hintHere() && values.arms === PLAIN.arms) values.arms = "contentless,shuffled,misleading";
    fill(root, top, before, el("div", { class: "fk-main" }, el("div", { class: "rl-stack" }, form, earlier), result), foot);
    fill(result);
    drawBefore();
    drawForm();
    drawEarlier();
    if (shown) follow(shown);
    else fill(result, el("div", { class: "rl-empty rl-card" }, el("p", { class: "rl-empty-title" }, "What if the hint had been different?"), el("p", {}, "Choose who speaks and what the student reads, then Run (r). The branches appear here; the original stays as it is.")));
  }
  addEventListener("popstate", () => { begin().catch(failed); });
  begin().catch(failed);
});
