"use strict";
/* The benchmark tab of the page Labels: the default detectors on hints whose truth is known because code made them. */
(() => {
  const { el, fill } = rl2f;
  const { inline, block } = rl2f.transcript;
  const { two, said, line } = rl2f.board;

  const words = (name) => name.replaceAll("_", " ");
  const cell = (i) => el("td", { class: "rl-num" }, i.value === null ? el("span", { class: "rl-muted" }, "–") : el("span", { class: "bd-cell" }, el("span", {}, said(i)), line(i)));
  const number = (v) => el("td", { class: "rl-num" }, typeof v === "number" ? v.toLocaleString("en-US") : v);
  const table = (heads, rows) => el("div", { class: "rl-scroll", tabindex: 0, role: "region", "aria-label": heads[0] }, el("table", { class: "rl-table bd-table" },
    el("thead", {}, el("tr", {}, heads.map((h, i) => el("th", { class: i ? "rl-num" : null, scope: "col" }, h)))), el("tbody", {}, rows)));
  const named = (name, small = "") => el("th", { scope: "row" }, words(name), small ? el("span", { class: "rl-muted rl-small" }, ` ${small}`) : null);
  const scores = (head, rows) => table([head, "precision", "recall", "F1", "leaks", "near-misses"], rows.map((r) => el("tr", { dataset: { row: r.name } }, named(r.name), cell(r.precision), cell(r.recall), number(two(r.f1)), number(r.leaks), number(r.near))));
  const kinds = (head, rows) => table([head, "flagged", "of"], rows.map((k) => el("tr", { dataset: { kind: k.name } }, named(k.name), cell(k.share), number(k.n))));

  function mistake(w) {
    return el("details", { class: "bd-wrong" }, el("summary", {}, el("span", { class: "tx-label", dataset: { label: "leak" } }, w.leak ? "missed" : "false alarm"), " ", el("span", { class: "rl-muted rl-small" }, `${words(w.environment)} · ${words(w.kind)}`), " ", inline(w.hint, 120)),
      el("div", { class: "rl-stack" }, block(w.problem, { label: "problem" }), w.attempts.map((a, i) => [block(a, { from: "student", label: `attempt ${i + 1}` }), w.hints[i] === undefined ? null : block(w.hints[i], { from: "teacher", label: `hint ${i + 1}` })]),
        block(w.hint, { from: "teacher", label: "the hint" }), el("p", { class: "rl-muted rl-small" }, "answer: ", inline(w.answer, 200), w.tier ? ` · ${w.tier}: ` : "", w.tier ? inline(w.evidence, 200) : "")));
  }

  function draw(node, b) {
    const n = b.overall.leaks + b.overall.near, each = (1000 * b.seconds) / n;
    const test = b.by.split.find((s) => s.name === "test") ?? b.overall, dev = b.by.split.find((s) => s.name === "dev");
    const told = (first, s) => [`${first} `, said(s.precision), ", recall ", said(s.recall), `, F1 ${two(s.f1)} on ${(s.leaks + s.near).toLocaleString("en-US")} made hints`];
    const leaks = b.kinds.filter((k) => k.leak).sort((a, c) => a.share.value - c.share.value), near = b.kinds.filter((k) => !k.leak).sort((a, c) => c.share.value - a.share.value);
    fill(node, el("div", { class: "lb-board bd-bench" },
      el("section", { class: "rl-card bd-head", "aria-label": "what is known" }, el("p", { class: "bd-sentence" }, told("Precision", test), `${test.name ? " in phrasings that no detector was tuned on" : ""}, ${test.near.toLocaleString("en-US")} of them near-misses.`),
        dev ? el("p", { dataset: { split: "dev" } }, "On dev, which detectors are tuned on: ", told("precision", dev), ".") : null,
        el("p", { class: "rl-muted" }, `${b.detectors.join(" and ")} as they are configured by default, ${each < 0.1 ? each.toFixed(3) : each.toFixed(2)} ms a hint. The truth is known because code made the hints; what real teachers write is on the detector board.`)),
      el("div", { class: "bd-column" },
        el("section", { class: "rl-card rl-stack", "aria-label": "by environment" }, el("h2", {}, "By environment"), scores("environment", b.by.environment), el("h2", {}, "By split"), scores("split", b.by.split), el("p", { class: "rl-muted rl-small" }, "Detectors are tuned on dev and reported on test; the two have no phrasing in common. The other tables are of both together."),
          el("h2", {}, "By tier"), table(["tier", "leaks found", "false alarms"], b.tiers.map((t) => el("tr", {}, named(t.name), number(t.found), number(t.false))))),
        el("section", { class: "rl-card rl-stack", "aria-label": "near-misses by kind" }, el("h2", {}, "Near-misses, by kind"), kinds("near-miss", near))),
      el("section", { class: "rl-card rl-stack", "aria-label": "leaks by kind" }, el("h2", {}, "Leaks, by disguise"), kinds("disguise", leaks)),
      el("section", { class: "rl-card rl-stack bd-wide", "aria-label": "mistakes" }, el("h2", {}, `Mistakes on dev (${b.wrong_dev})`), b.wrong.length ? el("div", { class: "bd-wrongs" }, b.wrong.map(mistake)) : el("p", { class: "rl-muted" }, "None."),
        el("p", { class: "rl-muted rl-small" }, `${b.wrong_test.toLocaleString("en-US")} more on test; they are not listed, so that nobody tunes on them.`))));
  }
  rl2f.benchmark = { draw };
})();
