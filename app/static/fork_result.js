"use strict";
/* What a fork came to: a dot and whisker for each arm, a table, and the dialogues as a tree. `rl2f.forkResult`. */
(() => {
  const { el, fill, api, links } = rl2f;
  const { block, inline, sign, signs, signed, fixed } = rl2f.transcript;
  const COLORS = { original: "--rl-teacher", contentless: "--rl-plot-2", empty: "--rl-plot-5", shuffled: "--rl-plot-3", misleading: "--rl-plot-4", edited: "--rl-accent", teacher: "--rl-plot-6" };
  const NAMES = { original: "as it was", empty: "no words" };
  const color = (arm) => `var(${COLORS[arm.split(" ")[0]] ?? "--rl-plot-8"})`;
  const narrow = matchMedia("(max-width: 600px)");
  const named = (arm) => NAMES[arm] ?? arm;
  /** `.31 [.20, .42]` */
  const text = (cell, plus = false) => (!cell || cell.value === null ? "–" : `${(plus ? signed : fixed)(cell.value)}${cell.low === null ? "" : ` [${(plus ? signed : fixed)(cell.low)}, ${(plus ? signed : fixed)(cell.high)}]`}`);
  const number = (cell, plus = false) => {
    const all = text(cell, plus), cut = all.indexOf(" ");
    return cut < 0 ? all : [all.slice(0, cut), " ", el("small", { class: "rl-muted" }, all.slice(cut + 1))];
  };

  /* ---- Dots and whiskers ---- */
  /** Share solved of each arm from 0 to 1, a row each; one picture for a checkpoint. */
  function plot(rows) {
    const [left, width, line] = narrow.matches ? [96, 340, 26] : [118, 560, 26], right = 14, height = rows.length * line + 30;
    const at = (share) => left + share * (width - left - right);
    const words = rows.map((r) => `${named(r.arm)} ${text(r.solved)}`).join("; ");
    return el("svg:svg", { class: "fk-plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `share solved: ${words}` },
      [0, 0.25, 0.5, 0.75, 1].map((tick) => [
        el("svg:line", { x1: at(tick), x2: at(tick), y1: 2, y2: rows.length * line + 4, stroke: "var(--rl-border)" }),
        el("svg:text", { x: at(tick), y: height - 10, "text-anchor": "middle", class: "fk-tick" }, fixed(tick))]),
      rows.map((r, i) => {
        const y = i * line + line / 2 + 2;
        return [el("svg:text", { x: left - 10, y: y + 4, "text-anchor": "end", class: "fk-name" }, named(r.arm).slice(0, 18)),
          r.solved.low === null ? null : el("svg:line", { x1: at(r.solved.low), x2: at(r.solved.high), y1: y, y2: y, stroke: color(r.arm), "stroke-width": 2.5 }),
          r.solved.value === null ? null : el("svg:circle", { cx: at(r.solved.value), cy: y, r: 5, fill: color(r.arm) })];
      }));
  }

  /* ---- Table ---- */
  function difference(cell, arm) {
    if (arm === "contentless") return el("td", { class: "rl-muted rl-small" }, "0 by definition");
    if (!cell || cell.value === null) return el("td", { class: "rl-muted" }, "–");
    const [mark, tone, words] = cell.low !== null && cell.low > 0 ? ["▲", "rl-right", "above 0"] : cell.high !== null && cell.high < 0 ? ["▼", "rl-wrong", "below 0"] : ["·", "rl-muted", "not separated from 0"];
    return el("td", { class: "rl-num", title: words }, el("span", { class: tone }, `${mark} `), number(cell, true));
  }
  function table(rows) {
    const kept = rows.some((r) => r.kept.value !== null);
    return el("div", { class: "rl-scroll" }, el("table", { class: "rl-table fk-table" },
      el("thead", {}, el("tr", {}, ["hint", "solved", "difference to contentless", "score of the next attempt", "difference", kept ? "right parts kept" : null].filter(Boolean).map((title) => el("th", {}, title)))),
      el("tbody", {}, rows.map((r) => el("tr", { dataset: { arm: r.arm } }, el("td", {}, el("i", { class: "fk-dot", style: { background: color(r.arm) } }), named(r.arm)),
        el("td", { class: "rl-num", title: `${r.solved.n} dialogues` }, number(r.solved)), difference(r.difference, r.arm), el("td", { class: "rl-num" }, number(r.score)), difference(r.score_difference, r.arm),
        kept ? el("td", { class: "rl-num" }, number(r.kept)) : null)))));
  }

  /* ---- Tree ---- */
  /**
   * The original's path, and the arms as branches under it. `place` is {run (the fork's), turn, original (a dialogue)};
   * `state` is {open: Set of "checkpoint|arm" and "checkpoint|arm|event", changed()}. Returns its node.
   */
  function tree(report, place, state) {
    const base = place.original;
    const root = el("div", { class: "fk-tree", role: "tree", "aria-label": "dialogues" });
    const after = base.turns.slice(place.turn + 1);
    root.append(leaf("original", 1, el("a", { href: links.dialogue(base.run, base.event, place.turn) }, "the original"), [
      el("span", { class: "rl-muted" }, `${after.length} more attempt${after.length === 1 ? "" : "s"}`), after.length ? signs(base.outcomes.slice(place.turn + 1)) : null]));
    for (const checkpoint of report.checkpoints) {
      root.append(el("div", { class: "fk-group rl-small rl-muted" }, inline(checkpoint, 60)));
      for (const row of report.results.filter((r) => r.checkpoint === checkpoint)) root.append(arm(row));
    }

    function leaf(id, level, ...children) {
      return el("div", { class: "fk-leaf", role: "treeitem", tabindex: -1, "aria-level": level, dataset: { id } }, children);
    }
    function branch(id, level, head, load) {
      const inside = el("div", { class: "fk-inside", role: "group" });
      const node = leaf(id, level, el("span", { class: "fk-turner", "aria-hidden": "true" }), head);
      const show = async (open) => {
        node.setAttribute("aria-expanded", String(open));
        inside.hidden = !open;
        if (open) state.open.add(id); else state.open.delete(id);
        if (open && !inside.childElementCount) {
          fill(inside, el("div", { class: "rl-muted rl-small" }, "…"));
          try { fill(inside, await load()); } catch { fill(inside, el("div", { class: "rl-wrong rl-small" }, "It could not be read.")); }
          root.dispatchEvent(new CustomEvent("fk:grown"));
        }
      };
      node.fkToggle = () => { show(inside.hidden).catch(() => {}); state.changed(); };
      node.addEventListener("click", (event) => { if (!event.target.closest("a")) { node.focus(); node.fkToggle(); } });
      inside.hidden = true;
      node.setAttribute("aria-expanded", "false");
      if (state.open.has(id)) show(true).catch(() => {});
      return [node, inside];
    }
    function arm(row) {
      const id = `${row.checkpoint}|${row.arm}`;
      const said = report.hints.find((h) => h.checkpoint === row.checkpoint)?.said[row.arm];
      const head = [el("i", { class: "fk-dot", style: { background: color(row.arm) } }), el("span", { class: "fk-arm" }, named(row.arm)), el("span", { class: "rl-num" }, text(row.solved)),
        said?.leak?.leaked ? el("span", { class: "rl-leak", title: said.leak.evidence }, `⚑ ${said.leak.detector ?? ""} leak`) : null,
        said?.error ? el("span", { class: "rl-wrong" }, "no message: ", inline(said.error, 80)) : null,
        el("span", { class: "fk-said" }, said ? (said.text ? inline(said.text, 90) : el("span", { class: "rl-muted" }, "(nothing)")) : null)];
      const [node, inside] = branch(id, 1, head, () => samples(row, id));
      return el("div", {}, node, inside);
    }
    async function samples(row, id) {
      const found = await api(`/api/dialogues?${new URLSearchParams({ run: place.run, phase: "fork", checkpoint: row.checkpoint, control: row.arm })}`, { quiet: true });
      const rows = found.rows.map((d) => {
        const link = links.dialogue(place.run, d.event, place.turn + 1);
        const head = [el("span", { class: "rl-num rl-muted" }, `${d.index + 1}`), signs(d.outcomes.slice(place.turn + 1)), d.error === null ? null : el("span", { class: "rl-wrong" }, "!"), el("span", { class: "rl-grow" }), el("a", { href: link, class: "rl-small", tabindex: -1 }, "replay")];
        const [node, inside] = branch(`${id}|${d.event}`, 2, head, () => turns(d.event));
        node.dataset.href = link;
        return [node, inside];
      });
      return [rows, found.total > found.rows.length ? el("a", { class: "rl-small", href: links.dialogues({ run: place.run, checkpoint: row.checkpoint, control: row.arm }) }, `all ${found.total} in the replay`) : null];
    }
    async function turns(event) {
      const d = await api(`/api/dialogues/one?${new URLSearchParams({ run: place.run, dialogue: event })}`, { quiet: true });
      return d.turns.slice(place.turn).map((turn) => [
        turn.index === place.turn ? null : el("div", { class: "fk-turn" }, el("div", { class: "rl-row rl-small" }, el("b", { class: "rl-student" }, `Student, turn ${turn.index + 1}`), sign(turn.sign), turn.parsed === null ? el("span", { class: "rl-muted" }, "no answer found") : inline(turn.parsed, 60), el("span", { class: "rl-num rl-muted" }, `r ${fixed(turn.reward)}`)), block(turn.attempt, { from: "student", label: `attempt ${turn.index + 1}` })),
        turn.hint ? el("div", { class: "fk-turn" }, el("b", { class: "rl-teacher rl-small" }, `Teacher, turn ${turn.index + 1}`), block(turn.hint.read, { from: "teacher", label: `hint ${turn.index + 1}` })) : null]);
    }
    return root;
  }

  /** All of it but the tree: one block for each checkpoint. */
  const summary = (report) => report.checkpoints.map((checkpoint) => {
    const rows = report.results.filter((r) => r.checkpoint === checkpoint);
    return rows.length ? el("section", { class: "fk-checkpoint", dataset: { checkpoint } }, el("h3", {}, inline(checkpoint, 60)), plot(rows), table(rows), report.hints.filter((h) => h.checkpoint === checkpoint).flatMap((h) => Object.entries(h.said)).filter(([, hint]) => hint.error).map(([arm, hint]) => el("p", { class: "rl-small rl-muted fk-missed" }, `${named(arm)} was not played: `, inline(hint.error, 200)))) : null;
  });

  rl2f.forkResult = { summary, tree, named, color };
})();
