/* Messages beside the fields of a form, a button to their default, and line numbers with the wrong lines marked. */
function make(tag, className, text) {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** The element of a path, or of the nearest one above it. */
function place(path) {
  for (let at = path; at; at = at.slice(0, Math.max(0, at.lastIndexOf(".")))) {
    const found = document.getElementById(`field-${at}`);
    if (found) return [found, at === path];
  }
  return [null, false];
}

export default function mount({ props, trigger, watch }) {
  let form = null;
  let marks = { errors: {}, resets: {}, lines: [] };
  let gutter = null;
  let wanted = 0; // until when an element that gets the focus is waited for

  const mark = () => {
    if (!form) return;
    const messages = new Map();
    for (const [path, texts] of Object.entries(marks.errors)) {
      const [field, exact] = place(path);
      const shown = texts.map((text) => (exact ? text : `${path}: ${text}`));
      if (field) messages.set(field, [...(messages.get(field) ?? []), ...shown]);
    }
    for (const field of form.querySelectorAll("[id^=field-]")) {
      const text = (messages.get(field) ?? []).join("\n");
      let note = field.querySelector(":scope > .rf-error");
      if (text && !note) { note = make("p", "rf-error", ""); note.setAttribute("role", "alert"); field.append(note); }
      if (note && note.textContent !== text) { if (text) note.textContent = text; else note.remove(); }
      const input = field.matches(".block") ? field.querySelector("input, textarea") : null;
      if (input && text) input.setAttribute("aria-invalid", "true");
      else input?.removeAttribute("aria-invalid");
      const path = field.id.slice(6);
      let reset = field.querySelector(":scope > .rf-reset");
      if (path in marks.resets && !reset) {
        reset = make("button", "rf-reset", "↺");
        reset.type = "button";
        reset.setAttribute("aria-label", `${path}: back to the default`);
        reset.onclick = () => trigger("select", { at: path });
        field.append(reset);
      } else if (!(path in marks.resets)) reset?.remove();
      if (reset) reset.title = `back to ${marks.resets[path]}`;
    }
    form.inert = Boolean(marks.off);
  };

  const area = () => document.querySelector(`#${props.text} textarea`);
  const number = () => {
    const text = area();
    if (!text) return;
    if (!gutter?.isConnected) {
      gutter = make("div", "nr-lines", "");
      gutter.setAttribute("aria-hidden", "true");
      text.before(gutter);
      text.addEventListener("scroll", () => { gutter.scrollTop = text.scrollTop; });
      text.addEventListener("input", () => setTimeout(number, 0));
      text.wrap = "off";
      text.spellcheck = false;
    }
    const count = text.value.split("\n").length;
    const state = `${count} ${marks.lines}`;
    if (gutter.dataset.state === state) return;
    gutter.dataset.state = state;
    const wrong = new Set(marks.lines);
    const rows = Array.from({ length: count }, (_, i) => make(wrong.has(i + 1) ? "b" : "span", "", `${i + 1}`));
    gutter.replaceChildren(...rows);
    gutter.scrollTop = text.scrollTop;
  };

  /** Move the focus; a field that is not drawn yet is waited for. */
  const go = () => {
    const [field, exact] = place(marks.focus ?? "");
    if (!wanted || (marks.focus && !exact && Date.now() < wanted)) return;
    wanted = 0;
    if (field) {
      field.scrollIntoView({ block: "center" });
      field.querySelector("input, textarea, button")?.focus({ preventScroll: true });
    }
    const text = area();
    if (!marks.go || !text) return;
    const rows = text.value.split("\n");
    const start = rows.slice(0, marks.go - 1).reduce((sum, row) => sum + row.length + 1, 0);
    text.focus();
    text.setSelectionRange(start, start + (rows[marks.go - 1] ?? "").length);
    text.scrollTop = Math.max(0, (marks.go - 5) * 18);
  };

  let waiting = false;
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; mark(); number(); go(); });
  };
  watch("value", () => {
    marks = JSON.parse(props.value);
    mark();
    number();
    if (!marks.focus && !marks.go) return;
    wanted = Date.now() + 1000;
    setTimeout(go, 0);
    setTimeout(go, 1001);
  });
  const start = () => {
    form = document.getElementById(props.form);
    if (!form) { setTimeout(start, 50); return; }
    new MutationObserver(later).observe(form, { childList: true, subtree: true });
    later();
  };
  start();
}
