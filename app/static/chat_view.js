"use strict";
/* How a conversation is drawn: which branch of its tree is seen, and the messages of that branch. Text is text. */
(() => {
  const { el, num } = rl2f;
  const { block, inline } = rl2f.transcript;

  /* ---- The tree ---- */
  /** Messages of a chat, and which of several siblings is seen. */
  class Tree {
    constructor(chat, messages) {
      this.chat = chat;
      this.all = new Map(messages.map((m) => [m.id, m]));
      this.picked = new Map();
    }
    put(message) {
      const fresh = !this.all.has(message.id);
      this.all.set(message.id, message);
      if (fresh) this.select(message.id);
    }
    get newest() { return Math.max(0, ...this.all.keys()); }
    static group(m) {
      if (m.role === "assistant") return `a:${m.parent}:${m.checkpoint}`;
      return m.role === "teacher" ? `t:${m.parent}` : `u:${m.parent}:${JSON.stringify(Object.entries(m.detail.after ?? {}).sort())}`;
    }
    siblings(m) { const group = Tree.group(m); return [...this.all.values()].filter((other) => Tree.group(other) === group); }
    /** See the branch that holds a message. */
    select(id) {
      let m = this.all.get(id);
      for (let steps = 0; m && steps <= this.all.size; steps++) {
        this.picked.set(Tree.group(m), m.id);
        for (const number of Object.values(m.detail.after ?? {})) {
          const said = this.all.get(number);
          if (said) this.picked.set(Tree.group(said), said.id);
        }
        m = this.all.get(m.parent);
      }
    }
    /** The one of a group that is seen: the one picked, else the newest. */
    seen(list) {
      if (!list.length) return null;
      const picked = this.picked.get(Tree.group(list[0]));
      return list.find((m) => m.id === picked) ?? list.at(-1);
    }
    children(parent, role, checkpoint = null) {
      return [...this.all.values()].filter((m) => m.parent === parent && m.role === role && (checkpoint === null || m.checkpoint === checkpoint));
    }
    /** The checkpoints of the answers to a message: those of the chat first, in their order. */
    checkpoints(parent) {
      const there = new Set(this.children(parent, "assistant").map((m) => m.checkpoint));
      const order = this.chat.settings.checkpoints;
      return [...order.filter((s) => there.has(s)), ...[...there].filter((s) => !order.includes(s))];
    }
    /** Chat: [{user, answers: Map(checkpoint → message)}] of the branch that is seen. */
    turns() {
      const out = [];
      let parent = null, answers = new Map();
      for (let steps = 0; steps <= this.all.size; steps++) {
        const next = this.children(parent, "user").filter((m) => Object.entries(m.detail.after ?? {}).every(([checkpoint, id]) => (answers.get(checkpoint)?.id ?? id) === id));
        const groups = new Map(next.map((m) => [Tree.group(m), m]));
        // two continuations that name other answers cannot both be seen; the newer group is
        const user = groups.size ? this.seen(next.filter((m) => Tree.group(m) === [...groups.keys()].at(-1))) : null;
        if (!user) break;
        answers = new Map(this.checkpoints(user.id).map((s) => [s, this.seen(this.children(user.id, "assistant", s))]));
        out.push({ user, answers });
        parent = user.id;
      }
      return out;
    }
    /** Play: the chain of one checkpoint below the problem, as it is seen. */
    chain(checkpoint) {
      const root = this.children(null, "user")[0];
      const out = [];
      let at = root;
      for (let steps = 0; at && steps <= this.all.size; steps++) {
        at = this.seen(this.children(at.id, at.role === "assistant" ? "teacher" : "assistant", checkpoint));
        if (at) out.push(at);
      }
      return out;
    }
    get problem() { return this.children(null, "user")[0] ?? null; }
    playing() { return this.problem ? this.checkpoints(this.problem.id) : []; }
  }
  const usable = (m) => m && (m.status === "done" || m.status === "stopped");

  /* ---- Parts of a message ---- */
  const STOPS = { solved: ["✓ solved", "rl-right"], exhausted: ["✗ not solved: no turns left", "rl-wrong"], truncated: ["✗ ended: the context is full", "rl-wrong"], dropped: ["⚑ ended: the hint leaked", "rl-leak"], failed: ["✗ failed", "rl-wrong"] };
  function verdict(m) {
    const found = m.detail.turn?.verdict;
    if (!found) return null;
    const [sign, kind] = found.correct ? ["✓", "rl-right"] : found.parsed === null ? ["?", "rl-muted"] : ["✗", "rl-wrong"];
    return el("span", { class: `ch-verdict ${kind}` }, `${sign} ${found.correct ? "right" : found.parsed === null ? "unparsable" : "wrong"}`,
      found.parsed === null ? null : [el("span", { class: "rl-muted" }, " parsed "), inline(found.parsed, 40)]);
  }
  function numbers(m) {
    const d = m.detail, parts = [];
    if (d.edited) parts.push("edited");
    if (d.tokens) parts.push(`${d.tokens} tok`);
    if (d.tokens > 1 && d.seconds > d.first) parts.push(`${num((d.tokens - 1) / (d.seconds - d.first), 1)} tok/s`);
    if (d.first !== undefined && d.first !== null) parts.push(`first ${num(d.first, 2)} s`);
    if (m.status === "stopped") parts.push("stopped");
    else if (d.stop === "length") parts.push("cut at the limit");
    return parts.length ? el("span", { class: "rl-muted rl-num ch-numbers", title: d.seed === undefined ? null : `seed ${d.seed}, ${d.prompt_tokens} tokens before it` }, parts.join(" · ")) : null;
  }
  function failure(error) {
    return el("div", { class: "ch-error", role: "alert" }, el("b", {}, "✗ "), el("span", {}, error.what), error.fix ? el("small", {}, ` ${error.fix}`) : null);
  }
  /** ‹ 2/3 › */
  function switcher(tree, m, go) {
    const list = tree.siblings(m);
    if (list.length < 2) return null;
    const at = list.indexOf(m);
    const step = (by, sign, label) => el("button", { type: "button", class: "rl-icon ch-step", disabled: !list[at + by], "aria-label": label, onclick: () => go(list[at + by].id) }, sign);
    return el("span", { class: "ch-switch rl-num", role: "group", "aria-label": "branches" }, step(-1, "‹", "branch before"), `${at + 1}/${list.length}`, step(1, "›", "next branch"));
  }
  const act = (label, title, run) => el("button", { type: "button", class: "rl-button rl-quiet rl-small", title, onclick: run }, label);

  /** What the guard made of a hint. */
  function report(m) {
    const hint = m.detail.hint, leak = hint?.leak;
    const out = [];
    if (m.detail.error) out.push(el("p", { class: "tx-finding rl-muted" }, `The teacher had no hint: `, inline(m.detail.error, 200)));
    if (!leak) out.push(el("p", { class: "tx-finding rl-muted" }, "not checked for leaks"));
    else if (!leak.leaked) out.push(el("p", { class: "tx-finding rl-muted" }, "✓ no leak found"));
    else {
      const done = { flag: "flagged", redact: "redacted", resample: "replaced", drop: "dialogue dropped" }[leak.action];
      out.push(el("p", { class: "tx-finding rl-leak" }, `⚑ ${leak.detector ?? ""} leak`, leak.evidence ? [": ", inline(leak.evidence, 160)] : null, leak.answer_fraction ? ` · ${Math.round(leak.answer_fraction * 100)} % of the answer` : "", done ? ` · ${done}` : ""));
    }
    return out;
  }
  function hintText(m) {
    const hint = m.detail.hint ?? {}, span = hint.leak?.span;
    const marks = span ? [{ start: span[0], end: span[1], kind: "found", title: hint.leak.evidence }] : [];
    const original = hint.feedback ?? null;
    if (original === null) return [block(m.content, { from: "teacher", marks, label: "hint" })];
    return [el("p", { class: "rl-muted rl-small ch-line" }, "as written"), block(original, { from: "teacher", marks, label: "hint as written" }),
      el("p", { class: "rl-muted rl-small ch-line" }, "what the student read"), block(m.content, { from: "teacher", label: "hint as read" })];
  }

  /** One message. `page` gives: tree, live (id → text node), checkpointName, go(id), edit(m), again(m), busy, readOnly. */
  function message(page, m) {
    const role = m.role === "assistant" ? "student" : m.role === "teacher" ? "teacher" : "task";
    const who = m.role === "assistant" ? page.checkpointName(m.checkpoint) : m.role === "teacher" ? (m.detail.by === "scripted" ? "Scripted teacher" : "You, as teacher") : page.tree.chat.mode === "play" ? "Problem" : "You";
    let body;
    if (m.status === "streaming") {
      const text = document.createTextNode(page.texts.get(m.id) ?? m.content);
      page.live.set(m.id, text);
      body = el("div", { class: "rl-model-text tx-block ch-streaming", dataset: { from: "student" }, dir: "auto", "aria-busy": "true" }, text);
    } else if (m.role === "teacher") body = [hintText(m), report(m)];
    else if (m.status === "failed" && !m.content) body = null;
    else body = block(m.content, { from: role, label: who });
    const fixed = m.role === "user" && page.tree.chat.mode === "play";
    const tools = page.busy || page.readOnly || m.status === "streaming" ? [] : [
      fixed || m.role === "system" ? null : act("Edit", "Change it in a branch; the original stays", () => page.edit(m)),
      m.role === "assistant" ? act("Again", "Another answer beside this one, drawn with another seed", () => page.again(m)) : null,
    ];
    return el("article", { class: "ch-message", dataset: { role: m.role, status: m.status, id: m.id } },
      el("header", { class: "ch-who" }, el("b", { class: role === "student" ? "rl-student" : role === "teacher" ? "rl-teacher" : "" }, who), verdict(m), switcher(page.tree, m, page.go)),
      body, m.detail.error && m.role === "assistant" ? failure(m.detail.error) : null,
      el("div", { class: "ch-foot" }, numbers(m), fixed ? page.answerLine() : null, el("span", { class: "rl-grow" }),
        el("span", { class: "ch-tools" }, m.content && m.status !== "streaming" && !fixed ? act("Copy", "Copy the text", () => navigator.clipboard?.writeText(m.content).then(() => rl2f.toast("Copied."), () => rl2f.toast("The browser does not let the page copy."))) : null, tools)));
  }

  /** Which of two answers is better: [← better] [tie] [better →] for every pair. */
  function judgements(page, answers) {
    const list = [...answers.values()].filter(usable);
    if (list.length < 2 || page.readOnly) return null;
    const rows = [];
    for (let i = 0; i < list.length; i++) for (let j = i + 1; j < list.length; j++) {
      const [a, b] = [list[i], list[j]], held = a.detail.preferences?.[b.id] ?? null;
      const button = (choice, text, label) => el("button", { type: "button", class: "rl-button rl-small", "aria-pressed": held === choice ? "true" : "false", "aria-label": label, onclick: () => page.prefer(a.id, b.id, held === choice ? null : choice) }, text);
      rows.push(el("div", { class: "ch-pair", role: "group", "aria-label": "Which is better?" }, el("span", { class: "rl-cut", title: page.checkpointName(a.checkpoint) }, page.checkpointName(a.checkpoint)),
        button("better", "← better", `${a.checkpoint} is better`), button("tie", "tie", "a tie"), button("worse", "better →", `${b.checkpoint} is better`),
        el("span", { class: "rl-cut", title: page.checkpointName(b.checkpoint) }, page.checkpointName(b.checkpoint))));
    }
    if (rows.length === 1) return rows[0];
    const given = list.reduce((n, m) => n + Object.keys(m.detail.preferences ?? {}).length, 0) / 2;
    const box = el("details", { class: "ch-pairs", open: page.open.has(list[0].parent) }, el("summary", {}, `Compare the answers (${given} of ${rows.length} judged)`), rows);
    box.addEventListener("toggle", () => (box.open ? page.open.add(list[0].parent) : page.open.delete(list[0].parent)));
    return box;
  }

  /** The whole conversation that is seen. */
  function thread(page) {
    const { tree } = page;
    if (tree.chat.mode === "play") return played(page);
    return tree.turns().map(({ user, answers }) => el("section", { class: "ch-turn" }, message(page, user),
      el("div", { class: "ch-columns", style: { "--columns": answers.size || 1 } }, [...answers.values()].map((m) => message(page, m))),
      judgements(page, answers)));
  }
  function played(page) {
    const { tree } = page;
    if (!tree.problem) return [];
    const columns = tree.playing().map((checkpoint) => {
      const chain = tree.chain(checkpoint), last = chain.at(-1), ended = last?.detail.ended;
      const attempts = chain.filter((m) => m.role === "assistant").length;
      const waits = last?.role === "assistant" && last.detail.turn && !ended && last.status !== "streaming";
      let state = null;
      if (ended) {
        const [text, kind] = STOPS[ended] ?? [ended, "rl-muted"];
        const kept = last.detail.recorded;
        state = el("div", { class: "ch-end" }, el("b", { class: kind }, ended === "solved" ? `${text} at attempt ${attempts}` : text),
          kept ? el("a", { href: rl2f.links.dialogue(kept.run, kept.event, 0), class: "rl-small" }, "replay and label") : last.detail.not_recorded ? el("small", { class: "rl-wrong" }, `not kept: ${last.detail.not_recorded}`) : null);
      } else if (waits && !page.readOnly) {
        const box = el("input", { type: "checkbox", checked: !page.unhinted.has(checkpoint), onchange: (event) => { event.target.checked ? page.unhinted.delete(checkpoint) : page.unhinted.add(checkpoint); page.drawComposer(); } });
        state = el("div", { class: "ch-end" }, tree.playing().length > 1 ? el("label", { class: "ch-check" }, box, "hint this one") : el("span", { class: "rl-muted" }, "waits for a hint"),
          el("span", { class: "rl-muted rl-num" }, `attempt ${attempts} of ${tree.chat.settings.max_turns}`), page.busy ? null : act("End here", "Keep the dialogue as it is", () => page.finish(last)));
      }
      return el("div", { class: "ch-column" }, chain.map((m) => message(page, m)), state);
    });
    return [el("section", { class: "ch-turn" }, message(page, tree.problem),
      el("div", { class: "ch-columns", style: { "--columns": columns.length || 1 } }, columns))];
  }

  rl2f.chatView = { Tree, thread, failure, usable };
})();
