"use strict";
/* The detector board of the page Labels: what is known of a detector, with intervals, and where people differ from it. */
(() => {
  const { el, fill } = rl2f;
  const { inline, LABELS } = rl2f.transcript;
  const BY = ["tier", "teacher", "environment", "checkpoint", "control", "run"];

  /* ---- Numbers ---- */
  const many = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
  const whole = (v) => Math.round(v).toLocaleString("en-US");
  /** `.94`, `1.00`, `.003`: a share without its leading zero. */
  function two(v) {
    if (v === null || v === undefined) return "–";
    const text = Math.abs(v) > 0 && Math.abs(v) < 0.005 ? Math.abs(v).toFixed(3) : Math.abs(v).toFixed(2);
    return `${v < 0 && Number(text) ? "−" : ""}${text.replace(/^0/, "")}`;
  }
  const ends = (i) => (i.low === null || i.value === null ? "" : `[${two(i.low)}, ${two(i.high)}]`);
  const said = (i) => [el("b", { class: "rl-num" }, two(i.value)), i.low === null || i.value === null ? null : el("span", { class: "rl-num bd-ends" }, ` ${ends(i)}`)];
  const text = (i) => `${two(i.value)}${i.low === null || i.value === null ? "" : ` ${ends(i)}`}`;
  /** The interval on a line from `from` to 1, with the estimate as a point. */
  function line(i, from = 0) {
    const at = (v) => `${(100 * Math.max(0, Math.min(1, (v - from) / (1 - from)))).toFixed(2)}%`;
    return el("span", { class: "bd-line", role: "img", "aria-label": i.value === null ? "not known" : text(i) },
      from < 0 ? el("i", { class: "bd-zero", style: { left: at(0) } }) : null,
      i.value === null || i.low === null ? null : el("i", { class: "bd-band", style: { left: at(i.low), right: `calc(100% - ${at(i.high)})` } }),
      i.value === null ? null : el("i", { class: "bd-point", style: { left: at(i.value) } }));
  }

  /* ---- The head ---- */
  function sentence(b) {
    const e = b.total.estimates, test = b.half === "test";
    const hints = `all ${many(e.size, "hint")}${test ? " of the test half" : ""}`;
    if (!e.size) return ["No hint of these runs was read by a detector."];
    if (!e.n_flagged && !e.n_unflagged) return [`Nothing is known of ${hints} yet: no label here was given blind on a random draw.`];
    const out = [];
    if (e.precision.value !== null) out.push("Precision ", said(e.precision), ` on ${many(e.n_flagged, "labelled flag")}`);
    else if (!e.flagged) out.push("The detector flagged none of them");
    else out.push("Precision is not known: no flagged hint of a random draw is labelled");
    if (e.recall.value !== null && e.misses === 0 && e.recall.value === 1) out.push("; no leak among ", many(e.n_unflagged, "unflagged hint"), ", so recall is at least ", el("b", { class: "rl-num" }, two(e.recall.low)), ` for ${hints}.`);
    else if (e.recall.value !== null) out.push("; recall ", said(e.recall), ` estimated for ${hints}.`);
    else if (!e.n_unflagged && e.size > e.flagged) out.push("; recall is not known: no unflagged hint of a random draw is labelled.");
    else out.push("; recall is not known: the labels hold no leak.");
    return out;
  }
  function aside(b) {
    const e = b.total.estimates;
    if (e.prevalence.value === null) return null;
    return ["Of these hints ", said(e.prevalence), " leak. ", "Not flagged: about ", el("b", { class: "rl-num" }, whole(e.missed.value)), el("span", { class: "rl-num bd-ends" }, ` [${whole(e.missed.low)}, ${whole(e.missed.high)}]`), " leaks."];
  }
  /** What to label next, or null where both intervals are narrow enough. */
  function task(b) {
    const e = b.total.estimates;
    if (!e.size) return null;
    if (!e.n_flagged && !e.n_unflagged) return `Label a random draw blind. ${b.more.first} labels on flagged hints bring precision to ± .05 at worst; 100 on unflagged ones give a first recall.`;
    if (e.n_unflagged === 0 && e.size > e.flagged) return "Label 100 unflagged hints of a random draw for a first recall.";
    if (e.n_flagged === 0 && e.flagged) return `Label flagged hints of a random draw: ${Math.min(b.more.first, e.flagged)} bring precision to ± .05.`;
    const left = e.size - e.n_flagged - e.n_unflagged;
    const parts = [["precision", Math.min(b.more.precision ?? 0, e.flagged - e.n_flagged), "flagged hints"], ["recall", Math.min(b.more.recall ?? 0, left), "hints of the draw"]].filter(([, n]) => n).map(([name, n, what]) => `${name} to ± .05: about ${n.toLocaleString("en-US")} more ${what}`);
    return parts.length ? `Label on for ${parts.join("; ")}.` : null;
  }
  const MEASURES = [
    ["precision", "precision", "leaks among the flagged hints", 0],
    ["recall", "recall", "flagged hints among all leaks, each label weighted by the hints that it stands for", 0],
    ["F1", "f1", "harmonic mean of both", 0],
    ["κ with people", "kappa", "agreement of the detector with people on all hints, beyond chance: 0 is chance, 1 is full", -1],
  ];
  function meters(e) {
    return el("div", { class: "bd-meters" }, MEASURES.map(([name, key, help, from]) => {
      const i = e[key];
      return el("div", { class: "bd-meter", title: help, dataset: { measure: key } }, el("span", { class: "bd-name" }, name), el("b", { class: "rl-num" }, two(i.value)), line(i, from),
        el("span", { class: "rl-muted rl-small rl-num" }, i.value === null ? "not known" : `${ends(i)} · ${many(i.n, "label")}`));
    }));
  }
  function head(b, on) {
    const what = task(b);
    return el("section", { class: "rl-card bd-head", "aria-label": "what is known" },
      b.half === "test" ? el("p", { class: "bd-open" }, "Test half, open. These figures are for the report: what is tuned by them must not be measured by them. ", el("button", { type: "button", class: "rl-button rl-small", onclick: on.close }, "Close it")) : null,
      el("p", { class: "bd-sentence" }, sentence(b)), el("p", { class: "rl-muted" }, aside(b)), meters(b.total.estimates),
      what && b.half === "dev" ? el("p", { class: "bd-task" }, el("span", {}, what), el("button", { type: "button", class: "rl-button rl-primary", onclick: on.label }, "Label a random draw")) : null);
  }

  /* ---- The breakdown ---- */
  const cell = (i) => el("td", { class: "rl-num" }, i.value === null ? el("span", { class: "rl-muted" }, "–") : el("span", { class: "bd-cell" }, el("span", {}, el("b", {}, two(i.value)), i.low === null ? null : el("span", { class: "bd-ends" }, ` ${ends(i)}`)), i.low === null ? null : line(i)));
  function row(r, by) {
    const e = r.estimates, n = e.n_flagged + e.n_unflagged;
    const few = r.small ? (n ? "few labels" : "no labels") : null;
    return el("tr", { class: `${r.name === "all" ? "bd-all" : ""} ${r.small ? "bd-small" : ""}`.trim() || null, dataset: { row: r.name } },
      el("th", { scope: "row", title: few ? `${many(n, "label")} here; a row needs 20 to be read` : null }, by === "run" && r.name !== "all" ? el("a", { href: rl2f.links.run(r.name) }, `run ${r.name}`) : inline(r.name, 40), few ? el("span", { class: "rl-muted rl-small" }, ` ${few}`) : null),
      cell(e.precision), cell(e.recall), cell(e.f1), cell(e.kappa), cell(r.labellers), [`${e.n_flagged} + ${e.n_unflagged}`, whole(e.flagged), whole(e.size)].map((t) => el("td", { class: "rl-num" }, t)));
  }
  function breakdown(b, by, on) {
    const heads = [by, "precision", "recall", "F1", "κ with people", "κ of people", "labels", "flagged", "hints"];
    const help = { labels: "flagged + unflagged hints whose labels count", recall: by === "tier" ? "share of all leaks that this tier alone finds" : null, "κ of people": "between labellers, over all their pairs" };
    return el("section", { class: "rl-card rl-stack bd-wide", "aria-label": "breakdown" },
      el("div", { class: "rl-row bd-by", role: "group", "aria-label": "break down by" }, el("h2", {}, "By"), BY.map((name) => el("button", { type: "button", class: "rl-button rl-small", dataset: { by: name }, "aria-pressed": String(name === by), onclick: () => on.by(name) }, name))),
      el("div", { class: "rl-scroll", tabindex: 0, role: "region", "aria-label": `figures by ${by}` }, el("table", { class: "rl-table bd-table" }, el("thead", {}, el("tr", {}, heads.map((h, i) => el("th", { class: i ? "rl-num" : null, scope: "col", title: help[h] ?? null }, h)))),
        el("tbody", {}, row({ ...b.total, name: "all" }, by), b.rows.map((r) => row(r, by))))),
      b.hidden ? el("p", { class: "rl-muted rl-small" }, `${many(b.hidden, "row")} without labels ${b.hidden === 1 ? "is" : "are"} left out.`) : null);
  }

  /* ---- People ---- */
  const REASONS = [["undecided", "undecided or only unsure"], ["unblind", "with the finding in sight"], ["picked", "picked by hand, not drawn"], ["narrower", "drawn from a part of these runs only"], ["unchecked", "on hints that this source did not read"]];
  const table = (heads, rows) => el("div", { class: "rl-scroll" }, el("table", { class: "rl-table" }, el("thead", {}, el("tr", {}, heads.map((h, i) => el("th", { class: i ? "rl-num" : null }, h)))), el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((c, i) => el("td", { class: i ? "rl-num" : null }, c)))))));
  const percent = (v) => (v === null ? "–" : `${(100 * v).toFixed(0)} %`);
  function people(b) {
    const u = b.used;
    return el("section", { class: "rl-card rl-stack", "aria-label": "labels" }, el("h2", {}, `Labels on ${many(u.hints, "hint")}`),
      el("p", {}, el("b", { class: "rl-num" }, u.counted), u.counted === 1 ? " counts: given blind on a random draw." : " count: given blind on a random draw."),
      REASONS.some(([key]) => u[key]) ? el("ul", { class: "bd-reasons rl-muted" }, REASONS.filter(([key]) => u[key]).map(([key, words]) => el("li", {}, el("b", { class: "rl-num" }, u[key]), ` ${words}`))) : null,
      b.labellers.length ? table(["labeller", "leak", "no leak", "unsure", "blind"], b.labellers.map((p) => [inline(p.name, 40), p.leak, p.no_leak, p.unsure, `${p.blind} of ${p.n}`])) : null,
      el("h2", {}, "Between labellers"),
      b.pairs.length ? table(["pair", "hints", "equal answers", "Cohen’s κ"], b.pairs.map((p) => [[inline(p.a, 30), " and ", inline(p.b, 30)], p.n, [percent(p.observed.value), p.observed.low === null ? null : el("span", { class: "bd-ends" }, ` [${percent(p.observed.low)}, ${percent(p.observed.high)}]`)], said(p.kappa)]))
        : el("p", { class: "rl-muted" }, "κ needs two labellers on the same hints, blind. Let a second person label the same draw: same seed, same size."));
  }

  /* ---- Disagreements ---- */
  function disputes(b) {
    const items = b.disputes.map((x) => el("a", { class: "lb-dispute", href: rl2f.links.dialogue(x.run, x.event, x.turn), dataset: { run: x.run, event: x.event, turn: x.turn } },
      el("span", { class: "rl-cut" }, `run ${x.run} · `, inline(x.event.replace(/^dialogue:[^:]*:/, ""), 60), ` · hint ${x.turn + 1}`),
      el("span", { class: "rl-row" }, Object.entries(x.answers).map(([name, label]) => el("span", { class: "tx-label", dataset: { label } }, inline(name, 20), `: ${LABELS[label]}`)),
        x.flagged === null ? null : el("span", { class: "tx-label", dataset: { label: x.flagged ? "leak" : "" } }, `detector: ${x.flagged ? `⚑ ${x.tier ?? "leak"}` : "clean"}`))));
    return el("section", { class: "rl-card rl-stack", "aria-label": "disagreements" }, el("h2", {}, `Disagreements (${b.disputed})`),
      b.disputed ? el("p", { class: "rl-muted rl-small" }, el("kbd", {}, "j"), " ", el("kbd", {}, "k"), " choose, ", el("kbd", {}, "Enter"), " opens the replay.", b.disputed > items.length ? ` The last ${items.length} are listed.` : "") : null,
      items.length ? el("div", { class: "lb-disputes" }, items) : el("p", { class: "rl-muted" }, b.used.hints ? "None: labellers agree with each other and with the detector." : "None yet."));
  }

  /* ---- The test half ---- */
  function half(b, on) {
    const o = b.openings, last = o.last[0];
    return el("section", { class: "rl-card rl-stack", "aria-label": "test half" }, el("h2", {}, "Test half"),
      el("p", { class: "rl-muted" }, "Half of all tasks, chosen by their content and so the same in every run, is kept for the end: tune on the other half, then open this one. Its disagreements stay closed as well. Every opening is noted."),
      el("div", { class: "rl-row" }, el("span", {}, !o.n ? "Never opened." : [`Opened ${o.n === 1 ? "once" : `${o.n} times`}, last by `, inline(last.who, 40), " ", rl2f.time(last.time), "."]), el("span", { class: "rl-grow" }),
        b.half === "test" ? el("button", { type: "button", class: "rl-button", onclick: on.close }, "Close the test half") : el("button", { type: "button", class: "rl-button", disabled: rl2f.readOnly, onclick: on.open }, "Open the test half…")));
  }

  /** Draw the board into a node. `on`: label(), by(name), open(), close(). */
  function draw(node, b, by, on) {
    const empty = !b.total.estimates.size;
    fill(node, el("div", { class: "lb-board", dataset: { half: b.half } }, head(b, on),
      empty ? null : breakdown(b, by, on), el("div", { class: "bd-column" }, people(b), half(b, on)), disputes(b)));
  }
  /** Move the focus from one disagreement to another, from the first or the last where none has it. */
  function move(node, step) {
    const all = [...node.querySelectorAll(".lb-dispute")];
    if (!all.length) return null;
    const now = all.indexOf(document.activeElement);
    const to = all[now < 0 ? (step > 0 ? 0 : all.length - 1) : Math.max(0, Math.min(all.length - 1, now + step))];
    to.focus();
    to.scrollIntoView({ block: "nearest" });
    return to;
  }
  /** The link of a disagreement, or null where it is not listed. */
  const find = (node, at) => [...node.querySelectorAll(".lb-dispute")].find((a) => a.dataset.run === String(at.run) && a.dataset.event === at.event && a.dataset.turn === String(at.turn)) ?? null;
  rl2f.board = { draw, move, find, BY, two, said, line };
})();
