/* A View whose inputs report their edits; the focus; line numbers of a text with the wrong lines marked. */
const read = (input) => input.type === "checkbox" ? input.checked : input.value;

function lineNumber(row, isWrong) {
  const made = document.createElement(isWrong ? "b" : "span");
  made.textContent = row;
  return made;
}

export default async function mount({ element, props, trigger, watch }) {
  const view = await import(location.origin + props.view);
  const form = () => element.querySelector("[data-serial]");
  const area = () => document.querySelector(`#${props.text} textarea`);
  const pending = new Map(); // field → its last edit that no value contains yet
  let count = 0;
  let serial = -1;
  let draft = null;
  let gutter = null;

  const send = () => {
    const edits = [...pending].map(([field, edit]) => [field, edit.value, edit.count]);
    trigger("input", { edits, draft });
  };
  const edited = (type) => ({ target }) => {
    if (!target.dataset.field || (type === "input") === ("late" in target.dataset)) return;
    count += 1;
    pending.set(target.dataset.field, { value: read(target), count });
    send();
  };
  element.addEventListener("input", edited("input"));
  element.addEventListener("change", edited("change"));

  const number = () => {
    const text = area();
    if (!text) return;
    if (!gutter?.isConnected) {
      gutter = document.createElement("div");
      gutter.className = "nr-lines";
      gutter.setAttribute("aria-hidden", "true");
      text.before(gutter);
      text.addEventListener("scroll", () => { gutter.scrollTop = text.scrollTop; });
      text.addEventListener("input", () => setTimeout(number, 0));
      text.wrap = "off";
      text.spellcheck = false;
    }
    const rows = text.value.split("\n").length;
    const lines = form().dataset.lines ?? "";
    if (gutter.dataset.state === `${rows} ${lines}`) return;
    gutter.dataset.state = `${rows} ${lines}`;
    const wrong = new Set(lines.split(",").map(Number));
    gutter.replaceChildren(...Array.from({ length: rows }, (_, i) => lineNumber(i + 1, wrong.has(i + 1))));
    gutter.scrollTop = text.scrollTop;
  };

  const moveFocus = ({ focus, go }) => {
    const field = focus && document.getElementById(focus);
    if (field) {
      field.scrollIntoView({ block: "center" });
      field.querySelector("input, textarea, select, button:not(.rf-reset)")?.focus({ preventScroll: true });
    }
    const text = area();
    if (!go || !text) return;
    const rows = text.value.split("\n");
    const start = rows.slice(0, go - 1).reduce((sum, row) => sum + row.length + 1, 0);
    text.focus();
    text.setSelectionRange(start, start + (rows[go - 1] ?? "").length);
    text.scrollTop = Math.max(0, (go - 5) * 18);
  };

  /** Give the inputs their values after the View has drawn; newer edits are kept. */
  const sync = () => {
    const { dataset } = form();
    const isFirst = serial <= 0;
    serial = Number(dataset.serial);
    if (dataset.draft !== draft) pending.clear();
    draft = dataset.draft;
    for (const [field, edit] of pending) if (edit.count <= Number(dataset.count)) pending.delete(field);
    for (const input of element.querySelectorAll("[data-field]")) {
      const edit = pending.get(input.dataset.field);
      if (input.type === "checkbox") input.checked = edit?.value ?? input.checked;
      else if (input.value !== (edit?.value ?? input.dataset.value)) input.value = edit?.value ?? input.dataset.value;
    }
    form().inert = "off" in dataset;
    number();
    setTimeout(() => { number(); moveFocus(dataset); }, 50); // after the text has its new value
    if (isFirst && serial && pending.size) send(); // edits before the draft was open
  };
  const newer = () => Number(JSON.parse(props.value)[1]["data-serial"]) > serial;
  view.default({ element, props, trigger, watch: (name, draw) => watch(name, () => {
    if (!newer()) return;
    draw();
    sync();
    element.closest(`.${props.around}`).style.visibility = "";
  }) });
  sync();
  const query = new URLSearchParams(location.search);
  const isOther = query.has("clone") || (query.has("preset") && draft !== `preset:${query.get("preset")}`);
  if (serial === 0 && isOther) element.closest(`.${props.around}`).style.visibility = "hidden";
}
