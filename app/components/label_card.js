/* A View in which the annotator marks the leaking words of a hint: by selecting them, or word by word with buttons.
   Each click on an action also reports the marked span, in code points, and the note. */
const NAME = "label-span";

export default async function mount({ element, props, trigger, watch, signal, values }) {
  const [view, { selected }] = await Promise.all([import(props.view), import(props.selection)]);
  const find = (selector) => element.querySelector(selector);
  const pieces = () => [...element.querySelectorAll("[data-select] [data-o]")];
  const characters = (piece) => (piece.dataset.one ? ["·"] : Array.from(piece.textContent));
  let version, annotator, span = null;

  view.default({ element, props, watch, values, trigger: (name, data) => {
    const { hint } = find("[data-hint]")?.dataset ?? {}; // an event may start later, when another hint is shown
    const draft = { ...(span ?? { start: null, end: null }), note: find("[data-note]")?.value ?? "" };
    trigger(name, { ...data, ...draft, hint });
  } });

  function place(position) {
    const piece = pieces().filter((each) => Number(each.dataset.o) <= position).at(-1);
    const within = characters(piece).slice(0, position - Number(piece.dataset.o)).join("").length;
    return [piece.firstChild, piece.dataset.one && within ? piece.textContent.length : within];
  }

  function show() {
    const card = find("[data-version]");
    CSS.highlights?.delete(NAME);
    if (!card) return;
    const note = find("[data-note]"), range = document.createRange(), { start, end } = card.dataset;
    if (span) {
      range.setStart(...place(span.start));
      range.setEnd(...place(span.end));
      if (window.Highlight) CSS.highlights.set(NAME, new window.Highlight(range));
    }
    find(".lb-span").textContent = range.toString();
    find(".lb-range").textContent = span ? ` characters ${span.start + 1}–${span.end}` : "";
    card.toggleAttribute("data-marked", Boolean(span));
    const saved = String(span?.start ?? "") === start && String(span?.end ?? "") === end;
    card.toggleAttribute("data-dirty", !saved || note.value !== (note.getAttribute("value") ?? ""));
  }

  function mark(to) {
    span = to;
    show();
  }

  /** Mark another word, or extend the span by one. */
  function move(step, extend) {
    const all = pieces().flatMap(characters), words = [];
    all.forEach((char, i) => {
      if (/\s/u.test(char)) return;
      if (words.at(-1)?.end === i) words.at(-1).end = i + 1;
      else words.push({ start: i, end: i + 1 });
    });
    if (!words.length) return;
    if (!span) { mark(words.at(step > 0 ? 0 : -1)); return; }
    const first = Math.max(0, words.findIndex((word) => word.end > span.start));
    const last = words.findLastIndex((word) => word.start < span.end);
    const to = Math.max(0, Math.min(words.length - 1, (extend ? last : first) + step));
    mark(extend ? { start: span.start, end: words[Math.max(first, to)].end } : words[to]);
  }

  function take() {
    const found = selected();
    if (found?.key !== "label") return;
    document.getSelection().removeAllRanges();
    mark({ start: found.start, end: found.end });
  }

  /** After each new value: a new hint or a saved label replaces what was marked and written. */
  function refresh() {
    const card = find("[data-version]");
    if (card && card.dataset.version !== version) {
      version = card.dataset.version;
      span = card.dataset.start ? { start: Number(card.dataset.start), end: Number(card.dataset.end) } : null;
      const note = find("[data-note]");
      note.value = note.getAttribute("value") ?? "";
      if (annotator !== undefined && annotator !== card.dataset.annotator) document.activeElement?.blur();
      annotator = card.dataset.annotator;
    }
    show();
    const back = history.state?.rlFocus;
    if (back && document.activeElement === document.body) find(`[data-return="${CSS.escape(back)}"]`)?.focus();
  }

  element.addEventListener("click", ({ target }) => {
    const { mark: act } = target.closest("[data-mark]")?.dataset ?? {};
    if (act === "clear") mark(null);
    else if (act) move(act.startsWith("next") ? 1 : -1, act.endsWith("extend"));
  });
  element.addEventListener("input", ({ target }) => { if (target.matches("[data-note]")) show(); });
  element.addEventListener("focusin", ({ target }) => { // a link that Back returns to
    if (target.dataset.return) history.replaceState({ ...history.state, rlFocus: target.dataset.return }, "");
  });
  document.addEventListener("mouseup", take, { signal });
  document.addEventListener("touchend", () => setTimeout(take), { signal });
  values.watch(refresh);
  refresh();
}
