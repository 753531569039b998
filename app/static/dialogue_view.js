"use strict";
/* One dialogue turn by turn, its tokens, its notes, and its group side by side. `rl2f.dialogueView(node, actions)`. */
(() => {
  const { el, fill, api } = rl2f;
  const { block, inline, sign, signs, signed, fixed, labelChip, hintMarks, finding, origin, LABELS } = rl2f.transcript;
  const STOPS = { solved: "solved", exhausted: "all turns used", truncated: "context full", dropped: "dropped for a leak", failed: "failed" };
  const chip = (text, title = null) => (text ? el("span", { class: "rl-chip", title }, text) : null);
  const fact = (name, value, title = null) => el("span", { class: "dv-fact", title }, el("span", { class: "rl-muted" }, `${name} `), el("span", { class: "rl-num" }, value));

  /* ---- Parts of a turn ---- */
  /** What changed from the last attempt: removed and added words between a little of what stayed. */
  function changed(changes) {
    if (!changes) return null;
    if (changes.every(([kind]) => kind === "=")) return el("p", { class: "dv-diff rl-muted" }, "the same words as before");
    const cut = (text, first, last) => {
      const chars = Array.from(text);
      if (chars.length <= 60) return text;
      const head = first ? "" : chars.slice(0, 25).join(""), tail = last ? "" : chars.slice(-25).join("");
      return `${head}…${tail}`;
    };
    return el("p", { class: "dv-diff", "aria-label": "what changed from the last attempt" }, el("span", { class: "rl-muted" }, "changed "), changes.map(([kind, text], i) => {
      const shown = inline(kind === "=" ? cut(text, i === 0, i === changes.length - 1) : text, 400);
      return kind === "-" ? el("del", {}, shown) : kind === "+" ? el("ins", {}, shown) : el("span", { class: "rl-muted" }, shown);
    }));
  }
  const terms = (turn) => el("span", { class: "dv-terms", title: "named terms of the reward: score × weight" },
    turn.terms.map((t) => el("span", { class: "dv-term" }, inline(t.name, 30), ` ${fixed(t.score)}`, t.weight === 1 ? null : el("span", { class: "rl-muted" }, ` × ${fixed(t.weight, 1)}`))));

  /** Tokens with a tint by how improbable they were; the exact value on hover. */
  function tokenView(data) {
    if (!data.tokens.length) return el("p", { class: "rl-muted rl-small" }, "No tokens are kept for this attempt.");
    const known = data.tokens.some((t) => t.logprob !== null);
    const words = data.tokens.some((t) => t.text !== null);
    return el("div", {},
      el("div", { class: "rl-model-text tx-block dv-tokens", dataset: { from: "student" } }, data.tokens.map((t) => {
        const tint = t.logprob === null ? 0 : Math.min(1, -t.logprob / 6);
        const shown = t.text === null ? `${t.id}` : t.text === "" ? "·" : t.text.replaceAll("\n", "↵\n");
        const value = t.logprob === null ? "no log-probability" : `log p ${t.logprob.toFixed(4)} · p ${Math.exp(t.logprob).toPrecision(3)}`;
        return el("span", { class: "dv-token", style: { "--tint": `${Math.round(tint * 75)}%` }, title: `${value} · id ${t.id}`, dataset: { id: t.id, logprob: t.logprob ?? "" } }, words ? inline(shown, 200) : shown);
      })),
      el("p", { class: "rl-muted rl-small" }, known ? "The stronger the tint, the less probable the token was (nats, at the sampling temperature). Hover for the value." : "These tokens were written, not sampled: they have no log-probability.",
        words ? "" : ` The tokenizer of ${data.model} is not on this machine, so ids are shown.`));
  }

  /* ---- The widget ---- */
  /**
   * Draws one dialogue into `node`. `actions`: {turn(index), label(label, span, note), open(event), group(), refresh()}.
   * Returns {show(dialogue, state), turn(index), tokens(), privileged(), noteField(), hintBlock()}.
   */
  function dialogueView(node, actions) {
    let data = null, state = {}, cards = [], privileged = null;

    const turnCount = () => data?.turns.length ?? 0;
    function show(dialogue, next) {
      if (data?.event !== dialogue.event || data?.run !== dialogue.run) privileged = null;
      data = dialogue;
      state = next;
      state.turn = Math.max(0, Math.min(state.turn ?? 0, turnCount() - 1));
      fill(node, heading(), problem(), el("div", { class: "dv-turns" }, (cards = data.turns.map(card))), ending(), notes());
      mark();
      if (state.tokens) showTokens(state.turn);
    }

    function heading() {
      const d = data;
      const right = d.siblings?.filter((s) => s.solved_at !== null).length ?? 0;
      const count = d.siblings?.length ?? 1;
      const kind = right === 0 ? "all wrong" : right === count ? "all right" : `mixed: ${right} right`;
      return el("div", { class: "dv-head" },
        el("div", { class: "rl-row dv-title" },
          signs(d.outcomes), el("h1", { class: "rl-title rl-grow" }, inline(d.key, 90)),
          el("button", { type: "button", class: "rl-button rl-small", title: "copy a link to exactly this turn (c)", onclick: () => actions.copy() }, "Copy link")),
        el("div", { class: "rl-row" },
          el("a", { class: "rl-chip", href: rl2f.links.run(d.run) }, `run ${d.run} · `, inline(d.run_name, 40)),
          chip(d.checkpoint ? `${d.phase} · ${d.checkpoint}` : `${d.phase} · ${d.stage} step ${d.step}`), chip(!d.control ? "" : d.phase === "distill" ? d.control.replaceAll("_", " ") : `control ${d.control}`),
          el("span", { class: "rl-chip" }, inline(d.environment, 40), " · ", inline(d.level, 40)), el("span", { class: "rl-chip", title: "task" }, inline(d.task, 60)),
          el("span", { class: "rl-chip", title: "the weights that spoke for the student" }, inline(d.policy, 40))),
        el("div", { class: "rl-row" },
          fact("return", fixed(d.reward)), fact("advantage", signed(d.advantage), "mean over the turns that carry one"), fact("ended", STOPS[d.stop] ?? d.stop), fact("seed", String(d.seed)),
          count > 1 ? el("button", { type: "button", class: "rl-button rl-small rl-quiet", onclick: () => actions.group() }, `group of ${count} (${kind})`) : null));
    }

    function problem() {
      const d = data;
      const hidden = el("div", { class: "dv-privileged" });
      const draw = () => fill(hidden, privileged
        ? [el("div", { class: "dv-answer" }, el("span", { class: "dv-who" }, "Answer"), privileged.answer === null ? el("span", { class: "rl-muted" }, "its environment is not to be had here") : block(privileged.answer, { label: "answer" })),
           el("details", { class: "dv-more" }, el("summary", {}, "Everything the student never sees"), block(JSON.stringify(privileged.privileged, null, 2), { label: "privileged half" }))]
        : el("button", { type: "button", class: "rl-button rl-small rl-quiet", dataset: { act: "privileged" }, onclick: () => reveal() }, "▸ answer hidden: show it (a)"));
      draw();
      node.dvReveal = draw;
      return el("section", { class: "dv-problem" },
        el("div", { class: "rl-row" }, el("span", { class: "dv-who" }, "Problem"), d.problem.rendered ? null : el("span", { class: "rl-muted rl-small" }, "as data: its environment is not to be had here")),
        block(d.problem.text, { label: "problem" }),
        d.problem.system ? el("details", { class: "dv-more", dataset: { fold: "system" } }, el("summary", {}, "System message"), block(d.problem.system, { label: "system message" })) : null,
        hidden);
    }
    async function reveal() {
      if (privileged) { privileged = null; node.dvReveal(); details(); return; }
      const [run, event] = [data.run, data.event];
      const found = await api(`/api/dialogues/privileged?${new URLSearchParams({ run, dialogue: event })}`);
      if (data.run !== run || data.event !== event) return;
      privileged = found;
      node.dvReveal();
      details();
    }
    /** The verifier's words may name the answer, so they come and go with it. */
    const details = () => cards.forEach((c, i) => fill(c.dvDetail, privileged?.details[i] ? ["verifier: ", inline(privileged.details[i], 400)] : null));

    function card(turn) {
      const last = data.turns[turn.index - 1];
      const moved = last && last.parsed !== null && turn.parsed !== null && last.parsed !== turn.parsed;
      const tokens = el("div", { class: "dv-token-place" });
      const detail = el("p", { class: "rl-small rl-muted dv-detail" });
      const made = el("article", { class: "dv-turn", dataset: { turn: turn.index }, onclick: () => { if (state.turn !== turn.index) actions.turn(turn.index); } },
        el("div", { class: "dv-line" },
          el("span", { class: "dv-number" }, String(turn.index + 1)), el("span", { class: "dv-who rl-student" }, data.phase === "distill" ? "Source" : "Student"),
          el("span", { class: "dv-verdict" }, sign(turn.sign), turn.parsed === null ? el("span", { class: "rl-muted" }, "no answer found") : [el("span", { class: "rl-muted" }, "parsed "), inline(turn.parsed)]),
          moved ? el("span", { class: "rl-chip dv-moved", title: "the answer changed from the last attempt" }, inline(last.parsed, 24), " → ", inline(turn.parsed, 24)) : null,
          last && last.parsed !== null && last.parsed === turn.parsed ? el("span", { class: "rl-chip", title: "the same answer as before" }, "repeats") : null,
          el("span", { class: "rl-grow" }),
          fact("r", fixed(turn.reward), `reward = ${turn.terms.map((t) => `${t.name} ${t.score}×${t.weight}`).join(" + ") || "no terms"}`),
          fact("A", signed(turn.advantage), "advantage"),
          turn.correct || !actions.fork ? null : el("button", { type: "button", class: "rl-button rl-small rl-quiet", title: "what if the hint after this turn had been different? (f)", dataset: { act: "fork" }, onclick: (event) => { event.stopPropagation(); actions.fork(turn.index); } }, "fork"),
          el("button", { type: "button", class: "rl-button rl-small rl-quiet rl-num", title: "tokens and their log-probabilities (t)", dataset: { act: "tokens" }, onclick: (event) => { event.stopPropagation(); if (state.turn !== turn.index) actions.turn(turn.index); actions.tokens(); } }, `${turn.tokens} tok`)),
        turn.asked ? asked(turn) : null,
        block(turn.attempt, { from: "student", label: `attempt ${turn.index + 1}` }),
        el("div", { class: "dv-under" }, changed(turn.changes), turn.terms.length ? terms(turn) : null, turn.stop === "length" ? el("span", { class: "rl-chip" }, "cut off at the token limit") : null),
        detail, tokens, turn.hint ? hint(turn) : null);
      Object.assign(made, { dvTokens: tokens, dvDetail: detail });
      return made;
    }

    /** What the student read before this attempt, where it was no dialogue that went on. */
    function asked(turn) {
      const { template, text } = turn.asked;
      return el("details", { class: "dv-more dv-asked", dataset: { fold: "asked" } },
        el("summary", {}, "asked by a fresh prompt ", el("span", { class: "rl-mono" }, template)),
        text === null ? el("p", { class: "rl-muted rl-small" }, "Its words are not to be had here: the template is not shipped, or has changed since. It shows the problem, the attempt and the hint above, and nothing before them.")
          : [el("p", { class: "rl-muted rl-small" }, "This is all that the student read before the attempt."), block(text, { label: `fresh prompt ${turn.index + 1}` })]);
    }

    function hint(turn) {
      const h = turn.hint;
      const box = block(h.text, { from: "teacher", marks: hintMarks(h), label: `hint ${turn.index + 1}` });
      const differs = h.read !== h.text;
      return el("div", { class: "dv-hint" },
        el("div", { class: "dv-line" }, el("span", { class: "dv-number" }), el("span", { class: "dv-who rl-teacher" }, "Teacher"), el("span", { class: "rl-muted rl-small" }, inline(h.teacher ?? "", 40)),
          h.source_task ? el("span", { class: "rl-chip", title: "written for another task" }, "for ", inline(h.source_task, 40)) : null, differs ? el("span", { class: "rl-chip" }, "as written") : null,
          el("span", { class: "rl-grow" }), worth(h.worth ?? []), h.labels.map(labelChip)),
        Object.assign(box, { dvHint: true }), origin(h), finding(h),
        differs ? [el("div", { class: "dv-line" }, el("span", { class: "dv-number" }), el("span", { class: "rl-muted rl-small" }, h.read ? "what the student read" : "the student read nothing")), h.read ? block(h.read, { from: "teacher", label: "what the student read" }) : null] : null,
        el("div", { class: "dv-labels", hidden: true }));
    }

    /** What the hint was worth, by the measurement that counts; all of them on hover. */
    function worth(measured) {
      if (!measured.length) return null;
      const say = (w) => `${signed(w.value)} [${signed(w.low)}, ${signed(w.high)}]`;
      const all = measured.map((w) => `${w.checkpoint}, ${w.n} samples${w.turns === null ? "" : `, ${w.turns} attempt${w.turns === 1 ? "" : "s"} after it`} (run ${w.run}): ${say(w)}; solved ${Object.entries(w.arms).map(([arm, share]) => `${arm} ${fixed(share)}`).join(", ")}`);
      return el("a", { class: "rl-chip rl-num dv-worth", href: rl2f.links.run(measured[0].run), title: `p(solve | this hint) − p(solve | contentless), 95 % interval\n${all.join("\n")}`, onclick: (event) => event.stopPropagation() }, `worth ${say(measured[0])}`);
    }

    /** The buttons and fields to label the current turn's hint. */
    function labelBar(place, turn) {
      const mine = turn.hint.labels.find((l) => l.labeller === rl2f.transcript.labeller.get());
      const button = (key, label) => el("button", { type: "button", class: `rl-button rl-small ${mine?.label === label ? "rl-primary" : ""}`, dataset: { label }, "aria-pressed": String(mine?.label === label),
        onmousedown: (event) => event.preventDefault(), onclick: () => actions.label(label) }, el("kbd", {}, key), LABELS[label]);
      fill(place, rl2f.readOnly ? el("span", { class: "rl-muted rl-small" }, "Read-only: labels cannot be given here.") : [
        button("1", "leak"), button("2", "no_leak"), button("3", "unsure"),
        el("input", { type: "text", class: "rl-field dv-note", placeholder: "why (optional)", "aria-label": "note on the label", maxlength: 4000, value: mine?.note ?? "" }),
        el("input", { type: "text", class: "rl-field dv-name", placeholder: "your name", "aria-label": "labeller", maxlength: 60, value: rl2f.transcript.labeller.get(), onchange: (event) => rl2f.transcript.labeller.set(event.target.value.trim()) }),
        el("span", { class: "rl-muted rl-small dv-tip" }, "select words in the hint to mark them")]);
      place.hidden = false;
    }

    function mark() {
      cards.forEach((each, i) => {
        const current = i === state.turn;
        each.toggleAttribute("data-current", current);
        if (current) each.setAttribute("aria-current", "true"); else each.removeAttribute("aria-current");
        const place = each.querySelector(".dv-labels");
        if (!place) return;
        if (current) labelBar(place, data.turns[i]); else { fill(place); place.hidden = true; }
      });
    }

    function ending() {
      return el("div", { class: "dv-end" }, data.error ? [el("span", { class: "rl-wrong" }, "✗ "), el("span", { class: "dv-who" }, "Error"), block(data.error, { label: "error" })] : null,
        turnCount() ? null : el("p", { class: "rl-muted" }, "The dialogue ended before the first attempt."));
    }

    function notes() {
      const text = el("textarea", { class: "rl-field", rows: 2, placeholder: "A note on this dialogue", "aria-label": "note", maxlength: 20000, dataset: { act: "note" } });
      const where = el("select", { class: "rl-field", "aria-label": "what the note is on" }, el("option", { value: "" }, "dialogue"), data.turns.map((t) => el("option", { value: String(t.index) }, `turn ${t.index + 1}`)));
      const add = async () => {
        if (!text.value.trim()) { text.focus(); return; }
        await api("/api/dialogues/notes", { body: { run: data.run, dialogue: data.event, turn: where.value === "" ? null : Number(where.value), text: text.value, author: rl2f.transcript.labeller.get() } });
        actions.refresh();
      };
      text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); add().catch(() => {}); } });
      return el("section", { class: "dv-notes" }, data.notes.length ? el("span", { class: "dv-who" }, "Notes") : null,
        data.notes.map((n) => el("div", { class: "dv-note-row" },
          el("div", { class: "rl-row rl-small rl-muted" }, n.turn === null ? "dialogue" : `turn ${n.turn + 1}`, n.author ? ["· ", inline(n.author, 40)] : null, " · ", rl2f.time(n.time), el("span", { class: "rl-grow" }),
            rl2f.readOnly ? null : el("button", { type: "button", class: "rl-icon", title: "delete the note", "aria-label": "delete the note", onclick: async () => {
              if (!(await rl2f.confirm({ title: "Delete this note?", text: n.text.slice(0, 200) }))) return;
              await api(`/api/dialogues/notes/${n.id}`, { method: "DELETE" }).catch(() => {});
              actions.refresh();
            } }, "×")),
          block(n.text, { label: "note" }))),
        rl2f.readOnly ? null : el("div", { class: "dv-note-new" }, text, el("div", { class: "rl-row" }, where, el("button", { type: "button", class: "rl-button rl-small", onclick: () => add().catch(() => {}) }, "Add note"))));
    }

    async function showTokens(index) {
      cards.forEach((c, i) => { if (i !== index) fill(c.dvTokens); });
      const [run, event, place] = [data.run, data.event, cards[index]?.dvTokens];
      if (!place) return;
      const found = await api(`/api/dialogues/tokens?${new URLSearchParams({ run, dialogue: event, turn: index })}`);
      if (state.tokens && state.turn === index && data.event === event) fill(place, tokenView(found));
    }

    return {
      show,
      reveal: () => reveal().catch(() => {}),
      turn(index) {
        state.turn = Math.max(0, Math.min(index, turnCount() - 1));
        mark();
        if (state.tokens) showTokens(state.turn).catch(() => {});
        cards[state.turn]?.scrollIntoView({ block: "nearest" });
        return state.turn;
      },
      tokens(on) {
        state.tokens = on;
        if (on) showTokens(state.turn).catch(() => {}); else cards.forEach((c) => fill(c.dvTokens));
      },
      fold: (open) => { rl2f.transcript.unfold(node, open); node.querySelectorAll("details").forEach((d) => { d.open = open; }); },
      hintBlock: () => [...(cards[state.turn]?.querySelectorAll(".dv-hint > .tx-block") ?? [])].find((b) => b.dvHint) ?? null,
      noteText: () => cards[state.turn]?.querySelector(".dv-note")?.value ?? "",
      nameField: () => cards[state.turn]?.querySelector(".dv-name"),
    };
  }

  /* ---- The group ---- */
  /** G siblings side by side: a column each, turns in line. */
  function groupView(node, dialogues, current, open) {
    const longest = Math.max(0, ...dialogues.map((d) => d.turns.length));
    const head = (d) => el("button", { type: "button", class: "gv-head", "aria-current": d.event === current ? "true" : null, onclick: () => open(d.event) },
      el("span", { class: "rl-row" }, el("b", { class: "rl-num" }, `#${d.index + 1}`), signs(d.outcomes), d.leak === 2 ? el("span", { class: "rl-leak", title: "a hint leaked" }, "⚑") : null),
      el("span", { class: "rl-row rl-num" }, fact("return", fixed(d.reward)), fact("A", signed(d.advantage))));
    const cell = (d, k) => {
      const turn = d.turns[k];
      if (!turn) return el("div", { class: "gv-cell gv-none" });
      return el("div", { class: "gv-cell" }, el("div", { class: "rl-row rl-small" }, sign(turn.sign), turn.parsed === null ? el("span", { class: "rl-muted" }, "no answer") : inline(turn.parsed, 30), el("span", { class: "rl-grow" }), fact("r", fixed(turn.reward)), fact("A", signed(turn.advantage))),
        block(turn.attempt, { from: "student", label: `attempt ${k + 1} of ${d.index + 1}` }), turn.hint ? [block(turn.hint.read, { from: "teacher", label: `hint ${k + 1} of ${d.index + 1}` }), turn.hint.leaked ? el("span", { class: "rl-leak rl-small" }, "⚑ leak") : null] : null);
    };
    const returns = dialogues.map((d) => d.reward);
    const mean = returns.reduce((a, b) => a + b, 0) / (returns.length || 1);
    fill(node,
      el("div", { class: "rl-row dv-title" }, el("h1", { class: "rl-title" }, `Group of ${dialogues.length}`), el("span", { class: "rl-muted" }, inline(dialogues[0]?.task ?? "", 80)), el("span", { class: "rl-grow" }),
        fact("mean return", fixed(mean)), fact("right", `${dialogues.filter((d) => d.solved_at !== null).length} of ${dialogues.length}`),
        el("button", { type: "button", class: "rl-button rl-small", onclick: () => open(null) }, "Back to the dialogue (v)")),
      dialogues[0] ? el("details", { class: "dv-more" }, el("summary", {}, "Problem"), block(dialogues[0].problem.text, { label: "problem" })) : null,
      el("div", { class: "rl-scroll gv-scroll", tabindex: 0, role: "region", "aria-label": "the group side by side" }, el("div", { class: "gv-grid", style: { "--columns": String(dialogues.length) } },
        dialogues.map(head), Array.from({ length: longest }, (_, k) => dialogues.map((d) => cell(d, k))))));
    node.querySelector(".gv-head[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }

  rl2f.dialogueView = dialogueView;
  rl2f.groupView = groupView;
})();
