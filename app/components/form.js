/* A View whose inputs report their edits. A value never overwrites an edit that it does not contain yet. */
const ROW = 18; // height of a line of a text with line numbers, in pixels
const read = (input) => input.type === "checkbox" ? input.checked : input.value;

export default async function mount({ element, props, trigger, watch, values }) {
  const view = await import(location.origin + props.view);
  const form = () => element.querySelector("[data-serial]");
  const around = props.around ? element.closest(`.${props.around}`) : null;
  const pending = new Map(); // field → its last edit that no value contains
  let count = 0;
  let draft = null;
  let waiting = null; // timer of the next event

  const send = () => {
    waiting = null;
    const edits = [...pending].map(([field, edit]) => [field, edit.value, edit.count]);
    trigger("input", { edits, draft });
  };
  const edited = (type) => ({ target }) => {
    const { field, late } = target.dataset;
    if (field === undefined || (type === "change") !== (late !== undefined)) return;
    count += 1;
    pending.set(field, { value: read(target), count });
    waiting ??= setTimeout(send, 0); // pasting several lines triggers an event for each
  };
  element.addEventListener("input", edited("input"));
  element.addEventListener("change", edited("change"));
  element.addEventListener("focusout", ({ target }) => { if ("leave" in target.dataset) trigger("blur", {}); });

  const moveFocus = ({ focus, go }) => {
    const field = focus && document.getElementById(focus);
    if (field) {
      field.scrollIntoView({ block: "center" });
      field.querySelector("input, textarea, select, button:not(.rf-reset)")?.focus({ preventScroll: true });
    }
    const text = go && element.querySelector("textarea");
    if (!text) return;
    const rows = text.value.split("\n");
    const start = rows.slice(0, go - 1).reduce((sum, row) => sum + row.length + 1, 0);
    text.focus({ preventScroll: true });
    text.setSelectionRange(start, start + (rows[go - 1] ?? "").length);
    form().scrollTop = Math.max(0, (go - 5) * ROW);
  };

  const sync = () => {
    const { dataset } = form();
    if (draft !== dataset.draft) pending.clear();
    draft = dataset.draft;
    for (const [field, edit] of pending) if (edit.count <= Number(dataset.count)) pending.delete(field);
    for (const input of element.querySelectorAll("[data-field]")) {
      const edit = pending.get(input.dataset.field);
      if (input.type === "checkbox") input.checked = edit?.value ?? input.checked;
      else if (input.value !== (edit?.value ?? input.dataset.value)) input.value = edit?.value ?? input.dataset.value;
    }
    form().inert = "off" in dataset;
    moveFocus(dataset);
  };
  const cover = (inert, hidden) => {
    if (!around) return;
    around.inert = inert;
    around.style.visibility = hidden ? "hidden" : "";
  };
  const draw = (redraw) => {
    redraw();
    sync();
    cover(false);
  };
  const drawn = { ...values, watch: (redraw) => values.watch(() => draw(redraw)) };
  view.default({ element, props, trigger, watch, values: drawn });
  sync();
  const query = new URLSearchParams(location.search);
  const isOther = query.has("clone") || (query.has("preset") && draft !== `preset:${query.get("preset")}`);
  if (form().dataset.serial === "0") cover(true, isOther);
}
