"use strict";
/* What people, models and tasks wrote, shown as it is: text nodes alone, invisible characters made visible, spans by
   code points (as Python counts them), and the way back from a selection to such a span. */
(() => {
  const { el } = rl2f;
  const FOLD = 4000;
  const SIGNS = { 1: "✓", 0: "✗", "?": "?" };
  const WORDS = { 1: "right", 0: "wrong", "?": "unparsable" };
  const LABELS = { leak: "leak", no_leak: "no leak", unsure: "unsure" };

  /* ---- Invisible characters ---- */
  const INVISIBLE = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb]|[\u{e0000}-\u{e0fff}]|\p{Cs}/u;
  const NAMES = {
    "0": "NUL", "1b": "ESC", ad: "SHY", "34f": "CGJ", "61c": "ALM", "200b": "ZWSP", "200c": "ZWNJ", "200d": "ZWJ", "200e": "LRM", "200f": "RLM",
    "2028": "LSEP", "2029": "PSEP", "202a": "LRE", "202b": "RLE", "202c": "PDF", "202d": "LRO", "202e": "RLO", "2060": "WJ",
    "2066": "LRI", "2067": "RLI", "2068": "FSI", "2069": "PDI", feff: "BOM", d: "CR",
  };
  function invisible(char, at) {
    const code = char.codePointAt(0).toString(16);
    const full = `U+${code.toUpperCase().padStart(4, "0")}`;
    return el("span", { class: "tx-invisible", title: `invisible character ${full}`, dataset: { o: at, one: "1" } }, NAMES[code] ?? full);
  }

  /* ---- Text ---- */
  /** Children that show `chars[from, to)`. Marks are {start, end, kind, title}; a mark may lie over another. */
  function pieces(chars, from, to, marks) {
    const inside = marks.filter((m) => m.start < to && m.end > from);
    const edges = [...new Set([from, to, ...inside.flatMap((m) => [Math.max(from, m.start), Math.min(to, m.end)])])].sort((a, b) => a - b);
    const out = [];
    for (let i = 0; i + 1 < edges.length; i++) {
      const [a, b] = [edges[i], edges[i + 1]];
      const over = inside.filter((m) => m.start <= a && m.end >= b);
      const nodes = plain(chars, a, b);
      out.push(...(over.length
        ? [el("mark", { class: `tx-mark ${over.map((m) => `tx-${m.kind}`).join(" ")}`, title: over.map((m) => m.title).filter(Boolean).join("\n") || null }, nodes)]
        : nodes));
    }
    return out;
  }
  function plain(chars, from, to) {
    const text = chars.slice(from, to).join("");
    if (!INVISIBLE.test(text)) return [el("span", { dataset: { o: from } }, text)];
    const out = [];
    let start = from;
    for (let i = from; i <= to; i++) {
      if (i < to && !INVISIBLE.test(chars[i])) continue;
      if (i > start) out.push(el("span", { dataset: { o: start } }, chars.slice(start, i).join("")));
      if (i < to) out.push(invisible(chars[i], i));
      start = i + 1;
    }
    return out;
  }
  /** A bordered block of somebody's words. `from`: student, teacher or task. Long texts are folded. */
  function block(text, { from = "task", marks = [], label = "", open = false } = {}) {
    const chars = Array.from(text ?? "");
    const node = el("div", { class: "rl-model-text tx-block", dataset: { from, length: chars.length }, dir: "auto", role: "group", "aria-label": label || null });
    const show = (all) => {
      node.replaceChildren();
      if (!chars.length) { node.append(el("span", { class: "rl-muted tx-nothing" }, "(nothing)")); return; }
      const end = all ? chars.length : Math.min(chars.length, Math.max(FOLD, ...marks.map((m) => Math.min(m.end + 200, 4 * FOLD))));
      node.append(...pieces(chars, 0, end, marks));
      if (chars.length > FOLD * 1.25) {
        const rest = chars.length - end;
        node.append(el("button", { type: "button", class: "rl-button rl-small tx-more", dataset: { fold: all ? "open" : "shut" }, onclick: () => show(!all) },
          rest ? `Show all ${chars.length.toLocaleString("en-US")} characters` : "Show less"));
      }
    };
    show(open);
    node.txUnfold = show;
    return node;
  }
  /** Open or shut every long text below a node. */
  const unfold = (node, open) => node.querySelectorAll(".tx-block").forEach((each) => each.txUnfold?.(open));

  /** One line of somebody's words, e.g. a parsed answer. */
  const inline = (text, limit = 80) => {
    const chars = Array.from(text ?? "");
    return el("span", { class: "tx-inline", dir: "auto", title: chars.length > limit ? chars.slice(0, 2000).join("") : null },
      plain(chars, 0, Math.min(chars.length, limit)), chars.length > limit ? "…" : null);
  };

  /* ---- Selections ---- */
  /** The selected span [start, end) in code points of a block's text, or null where nothing in it alone is selected. */
  function selected(node) {
    const selection = document.getSelection();
    if (!selection || selection.isCollapsed || !selection.rangeCount) return null;
    const range = selection.getRangeAt(0);
    if (!node.contains(range.startContainer) || !node.contains(range.endContainer)) return null;
    const start = offset(node, range.startContainer, range.startOffset);
    const end = offset(node, range.endContainer, range.endOffset);
    return start !== null && end !== null && start < end ? { start, end } : null;
  }
  function offset(node, place, at) {
    const all = [...node.querySelectorAll("[data-o]")];
    const length = (piece) => (piece.dataset.one ? 1 : Array.from(piece.textContent).length);
    if (place.nodeType === Node.TEXT_NODE) {
      const piece = place.parentElement.closest("[data-o]");
      if (!piece) return null;
      const within = piece.dataset.one ? (at > 0 ? 1 : 0) : Array.from(place.data.slice(0, at)).length;
      return Number(piece.dataset.o) + within;
    }
    const next = place.childNodes[at];  // between two children: where the next piece begins, else where the last one ends
    const first = next && (next.dataset?.o !== undefined ? next : next.querySelector?.("[data-o]"));
    if (first) return Number(first.dataset.o);
    const before = all.filter((piece) => place.contains(piece)).at(-1);
    return before ? Number(before.dataset.o) + length(before) : null;
  }

  /* ---- Small things that both pages show ---- */
  const sign = (mark) => el("span", { class: `tx-sign ${mark === "1" ? "rl-right" : mark === "0" ? "rl-wrong" : "rl-muted"}`, title: WORDS[mark] }, SIGNS[mark]);
  const signs = (outcomes) => el("span", { class: "tx-signs", role: "img", "aria-label": Array.from(outcomes).map((m) => WORDS[m]).join(", ") }, Array.from(outcomes).map(sign));
  const number = (value, digits, plus) => {
    if (value === null || value === undefined) return "–";
    const text = Math.abs(value).toFixed(digits);
    return Number(text) === 0 ? text : `${value < 0 ? "−" : plus}${text}`;
  };
  const signed = (value, digits = 2) => number(value, digits, "+");
  const fixed = (value, digits = 2) => number(value, digits, "");
  const labelChip = (label) => el("span", { class: "tx-label", dataset: { label: label.label }, title: [label.blind ? "given blind" : "given with the finding in sight", label.note].filter(Boolean).join("\n") },
    `${label.label === "leak" ? "⚑ " : label.label === "no_leak" ? "✓ " : "? "}${LABELS[label.label] ?? label.label}`, el("span", { class: "rl-muted" }, " · ", inline(label.labeller, 30)));
  /** What a detector or a person marked in a hint. */
  const hintMarks = (hint) => [
    ...(hint.findings ?? []).filter((f) => f.start !== null).map((f) => ({ start: f.start, end: f.end, kind: "found", title: `${f.tier ?? "detector"}: ${f.evidence}` })),
    ...(hint.labels ?? []).filter((l) => l.start !== null).map((l) => ({ start: l.start, end: l.end, kind: "said", title: `${l.labeller}: ${LABELS[l.label]}` })),
  ];
  /** The sentence about a finding. */
  function finding(hint) {
    const list = hint.findings.length || !hint.leaked ? hint.findings : [{ tier: null, evidence: "", share: 0, action: null }];
    const own = hint.leaked || hint.error ? [] : [el("p", { class: "tx-finding rl-muted" }, hint.checked ? "no leak found" : "not checked for leaks")];  // of nobody's words there is nothing to check
    return [...own, ...list.map((f) => el("p", { class: "tx-finding rl-leak" }, "⚑ ", f.tier ? `${f.tier} leak` : "leak", f.source && f.source !== "run" ? ` (asked again in run ${f.source})` : "",
      f.evidence ? [": ", inline(f.evidence, 160)] : null, f.share ? ` · ${Math.round(f.share * 100)} % of the answer` : "", f.action ? ` · ${f.action === "flag" ? "flagged" : f.action === "redact" ? "redacted" : f.action === "resample" ? "asked again" : "dialogue dropped"}` : ""))];
  }
  /** How a model teacher was asked and what it cost, and why there was no hint; nothing for other teachers. */
  function origin(hint) {
    const u = hint.usage, count = (n) => n.toLocaleString("en-US");
    const paid = u ? [`${count(u.prompt_tokens)} + ${count(u.completion_tokens)} tokens`, u.cost === null ? null : `$${u.cost.toPrecision(2)}`, u.cached ? "from the cache" : null, u.requests > 1 ? `${u.requests} tries` : null] : [];
    const told = [hint.prompt ? el("span", { class: "rl-num", title: "prompt template and the hash of its file" }, inline(hint.prompt, 60)) : null, ...paid.filter(Boolean)].filter(Boolean);
    return [
      hint.error ? el("p", { class: "tx-finding rl-wrong tx-failed" }, "no hint: ", inline(hint.error, 240)) : null,
      told.length ? el("p", { class: "tx-finding rl-muted tx-origin", title: u ? `${u.seconds.toFixed(2)} s; tokens read + written` : null }, told.flatMap((part, i) => (i ? [" · ", part] : [part]))) : null,
    ];
  }
  /** Who labels, kept in this browser. */
  const labeller = {
    get: () => { try { return localStorage.getItem("rl2f.labeller") ?? ""; } catch { return ""; } },
    set: (name) => { try { localStorage.setItem("rl2f.labeller", name); } catch { /* then it holds for this page */ } },
  };

  rl2f.transcript = { block, inline, unfold, selected, sign, signs, signed, fixed, labelChip, hintMarks, finding, origin, labeller, LABELS };
})();
