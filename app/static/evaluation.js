"use strict";
/* Tables of evaluations, for the pages Run and Compare: checkpoint × control with intervals, differences, findings. */
(() => {
  const { el, links } = rl2f;
  const COLORS = { hints: "--rl-teacher", contentless: "--rl-plot-2", resample: "--rl-plot-5", shuffled: "--rl-plot-3", misleading: "--rl-plot-4" };

  /** `.31 [.20, .42]`, the interval smaller. */
  function number(cell) {
    if (!cell) return el("span", { class: "rl-muted" }, "–");
    const cut = cell.text.indexOf(" ");
    return el("span", { title: `n = ${cell.n}` }, cut < 0 ? cell.text : [cell.text.slice(0, cut), " ", el("small", {}, cell.text.slice(cut + 1))],
      cell.constant_baseline ? el("small", { class: "rl-floor", title: cell.constant_baseline }, " ≈ constant") : null);
  }
  function range(cells) {
    const ends = cells.filter(Boolean).flatMap((c) => [c.value, c.low, c.high]).filter((v) => v !== null);
    return [Math.min(-0.1, ...ends), Math.max(0.1, ...ends)];
  }
  const control = (name) => el("span", { class: "rl-control" },
    el("i", { style: { color: `var(${COLORS[name] ?? "--rl-plot-8"})` } }), name);

  /** The table of one evaluation. `dialogues(checkpoint, control)` is the address behind a row. */
  function table(evaluation, dialogues) {
    const { columns, rows, players } = evaluation.table;
    const [low, high] = range(rows.map((row) => row.cells.effect));
    let last = null;
    const body = rows.map((row) => {
      const first = row.checkpoint !== last;
      last = row.checkpoint;
      return el("tr", { class: `${first ? "rl-first" : ""} ${row.control === "hints" ? "rl-hints" : ""}` },
        el("td", {}, first ? el("b", {}, row.checkpoint) : ""),
        el("td", {}, el("a", { href: dialogues(row.checkpoint, row.control), title: "Read these dialogues" }, control(row.control))),
        columns.map((column) => {
          const cell = row.cells[column.key];
          if (column.key === "effect" && !cell) return el("td", { class: "rl-muted rl-small" }, row.control === "contentless" ? "0 by definition" : "–");
          return el("td", {}, number(cell), column.key === "effect" ? rl2f.charts.whisker(cell, low, high) : null);
        }));
    });
    const shown = [1, evaluation.turns];
    const best = players.map((player) => el("tr", {},
      el("td", { class: "rl-muted" }, "player"), el("td", { class: "rl-muted" }, player.name),
      columns.map((column) => {
        const turn = column.key === "cum_acc/1" ? 1 : column.key === "cum_acc/T" ? evaluation.turns : null;
        const found = shown.includes(turn) && player.values.find((v) => v.turn === turn);
        return el("td", { class: "rl-muted" }, found ? found.text : "");
      })));
    return el("div", { class: "rl-scroll" }, el("table", { class: "rl-table rl-eval" },
      el("thead", {}, el("tr", {}, el("th", {}, "checkpoint"), el("th", {}, "control"),
        columns.map((column) => el("th", { title: column.help }, column.title)))),
      el("tbody", {}, body, best)));
  }

  /** Differences `{quantity, checkpoint, against, cell, finding}`. */
  function differences(rows) {
    const [low, high] = range(rows.map((row) => row.cell));
    return el("div", { class: "rl-scroll" }, el("table", { class: "rl-table rl-eval" },
      el("thead", {}, el("tr", {}, ["checkpoints", "quantity", "difference", "finding"].map((title) => el("th", {}, title)))),
      el("tbody", {}, rows.map((row) => el("tr", {},
        el("td", {}, `${row.checkpoint} − ${row.against}`), el("td", {}, row.quantity),
        el("td", {}, number(row.cell), row.cell ? rl2f.charts.whisker(row.cell, low, high) : null),
        el("td", {}, row.finding))))));
  }

  const findings = (lines) => el("ul", { class: "rl-findings" }, lines.map((line) => el("li", {}, line)));
  const dialoguesOf = (run) => (checkpoint, name) => links.dialogues({ run, phase: "evaluation", checkpoint, control: name });

  rl2f.evaluation = { table, differences, findings, number, control, range, dialoguesOf };
})();
