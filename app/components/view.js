/* Builds and patches the elements of a View. Texts become text nodes; only safe attributes are set. */
const SVG = "http://www.w3.org/2000/svg";
const ATTRIBUTES = new Set([
  "class", "title", "role", "href", "download", "type", "name", "value", "style", "open", "checked", "disabled", "id",
  "colspan", "rowspan", "tabindex", "hidden", "for", "alt", "placeholder", "maxlength", "src", "width", "height",
  "viewBox", "d", "points", "fill", "stroke", "stroke-width", "x", "x1", "x2", "y", "y1", "y2", "cx", "cy", "r", "min",
  "max", "scope", "lang", "target", "rel",
]);
const isSafe = (name) => ATTRIBUTES.has(name) || /^(aria|data)-[a-z-]+$/.test(name);
const ACTIVE = /^(script|style|iframe|object|embed|link|meta|base)$/i;
const LOCAL = /^(\/(?!\/)|#|https?:\/\/|$)/;
const UNITS = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [Infinity, 86400, "d"]];

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isElement = (node) => Array.isArray(node) && typeof node[0] === "string" && isObject(node[1]);
const keyOf = (node) => (isElement(node) ? node[1]["data-key"] ?? node[1].id : undefined);

function create(node) {
  if (!isElement(node)) return document.createTextNode(String(node));
  const [tag] = node;
  if (tag.startsWith("svg:")) return patch(document.createElementNS(SVG, tag.slice(4)), node);
  return patch(document.createElement(ACTIVE.test(tag) ? "div" : tag), node);
}

function patch(dom, node) {
  const was = dom.rlAttributes ?? {};
  const now = node[1];
  for (const name of Object.keys(was)) if (!(name in now) && name !== "open") dom.removeAttribute(name);
  for (const [name, value] of Object.entries(now)) {
    if (was[name] === value || !isSafe(name)) continue;
    if ((name === "href" || name === "src") && !LOCAL.test(String(value))) continue;
    if (name === "value") dom.value = value;
    dom.setAttribute(name, value === true ? "" : String(value));
    if (name === "data-show") requestAnimationFrame(() => dom.scrollIntoView({ block: "nearest" }));
  }
  if ("checked" in was || "checked" in now) dom.checked = Boolean(now.checked);
  dom.rlAttributes = now;
  children(dom, node.slice(2));
  if (dom.localName === "time") freshen(dom);
  if (dom.localName === "dialog") requestAnimationFrame(() => dom.isConnected && !dom.open && dom.showModal());
  return dom;
}

/** Make the children of `dom` those of the list; elements with a data-key keep their DOM node. */
function children(dom, list) {
  const keyed = new Map();
  for (const child of dom.childNodes) if (child.rlKey !== undefined) keyed.set(child.rlKey, child);
  list.forEach((node, i) => {
    const here = dom.childNodes[i] ?? null;
    const key = keyOf(node);
    let found = key === undefined ? here : keyed.get(key) ?? null;
    if (found && key === undefined && found.rlKey !== undefined) found = null;
    if (found && isElement(node) && found.localName === node[0].replace("svg:", "")) patch(found, node);
    else if (found && !isElement(node) && found.nodeType === Node.TEXT_NODE) {
      if (found.data !== String(node)) found.data = String(node);
    } else {
      const made = create(node);
      if (found === here && found !== null && key === undefined) { dom.replaceChild(made, found); return; }
      found = made;
    }
    found.rlKey = key;
    if (found !== dom.childNodes[i]) dom.insertBefore(found, dom.childNodes[i] ?? null);
  });
  while (dom.childNodes.length > list.length) {
    dom.lastChild.close?.(); // a dialog returns the focus
    dom.lastChild.remove();
  }
}

function freshen(node) {
  const t = Number(node.dataset.t);
  if (!isFinite(t)) return;
  const delta = Date.now() / 1000 - t;
  const [, unit, name] = UNITS.find(([limit]) => Math.abs(delta) < limit);
  const count = `${Math.floor(Math.abs(delta) / unit)} ${name}`;
  if (Math.abs(delta) < 10) node.textContent = delta >= 0 ? "just now" : "in a moment";
  else node.textContent = delta >= 0 ? `${count} ago` : `in ${count}`;
  node.title = new Date(t * 1000).toLocaleString();
}
setInterval(() => document.querySelectorAll("time[data-t]").forEach(freshen), 10000);
/** Close the open menus but those of which `keeps` is true. */
function closeMenus(keeps = () => false) {
  for (const menu of document.querySelectorAll("details:is(.rl-menu, .rl-help)[open]")) {
    if (keeps(menu)) continue;
    if (menu.contains(document.activeElement)) menu.querySelector("summary").focus();
    menu.open = false;
  }
}
/** Close Gradio's accordions that cover the page, but the one that contains `target`. */
function closePanels(target) {
  for (const head of document.querySelectorAll(".rl-panel > .label-wrap.open")) {
    const covers = getComputedStyle(head.nextElementSibling).position === "absolute";
    if (covers && !head.parentNode.contains(target)) head.click();
  }
}
document.addEventListener("click", ({ target }) => {
  closeMenus((menu) => menu.contains(target) && !target.closest("a, button"));
  closePanels(target);
}, true);
document.addEventListener("keydown", ({ key }) => {
  if (key !== "Escape") return;
  closeMenus();
  closePanels(null);
});

/** Ask before an action that cannot be undone. Resolves to whether the user agreed. */
function agreed({ confirm, confirmLabel }) {
  return new Promise((resolve) => {
    const button = (label, value, style) => ["button", { type: "button", class: `rl-button ${style}`, value }, label];
    const buttons = [button("Cancel", "", ""), button(confirmLabel ?? "Delete", "1", "rl-danger")];
    const actions = ["div", { class: "rl-actions" }, ...buttons];
    const box = create(["dialog", { class: "rl-dialog", "aria-label": confirm }, ["p", {}, confirm], actions]);
    box.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (pressed) box.close(pressed.getAttribute("value"));
    });
    box.addEventListener("close", () => {
      box.remove();
      resolve(box.returnValue === "1");
    });
    document.body.append(box);
    box.showModal();
  });
}

function copy(button) {
  const text = button.textContent;
  const show = (result) => { button.textContent = result; };
  const done = navigator.clipboard.writeText(button.dataset.text ?? location.href);
  done.then(() => show("Copied"), () => show("Not permitted"));
  setTimeout(() => show(text), 1500);
}

function download({ text, file }) {
  const link = create(["a", { download: file }]);
  link.href = URL.createObjectURL(new Blob([text]));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function markCurrent(root, key) {
  for (const item of root.querySelectorAll("[data-key]")) {
    const isCurrent = item.dataset.key === key;
    if (isCurrent === (item.ariaCurrent === "true")) continue;
    item.ariaCurrent = isCurrent ? "true" : null;
    if (isCurrent) requestAnimationFrame(() => item.scrollIntoView({ block: "nearest" }));
  }
}

export default function mount({ element, props, trigger, watch, values }) {
  const root = document.createElement("div");
  root.className = "rl-view";
  element.replaceChildren(root);
  const mark = () => { if (props.current !== undefined) markCurrent(root, props.current); };
  const draw = () => {
    const value = values.get() ?? [];
    children(root, isElement(value) ? [value] : value.filter((node) => node !== null));
    mark();
  };
  root.addEventListener("click", async (event) => {
    const source = event.target.closest("[data-action]");
    if (!source || source.disabled) return;
    if (source.dataset.action === "copy") { copy(source); return; }
    if (source.dataset.action === "download") { download(source.dataset); return; }
    if (source.localName === "a") event.preventDefault();
    const field = source.dataset.focus && document.querySelector(source.dataset.focus);
    if (field && !field.value) { field.focus(); return; } // a field that must be filled in first
    const data = { ...source.dataset };
    if (!data.confirm || await agreed(data)) trigger(data.trigger ?? "click", data);
  });
  root.addEventListener("close", () => trigger("click", { action: "close" }), true);
  root.addEventListener("submit", (event) => {
    event.preventDefault();
    const fields = {};
    for (const [name, value] of new FormData(event.target)) (fields[name] ??= []).push(value);
    trigger("submit", { ...event.target.dataset, fields });
  });
  root.addEventListener("change", (event) => {
    const source = event.target.closest("[data-change]");
    if (!source) return;
    trigger("input", { ...source.dataset, value: source.type === "checkbox" ? source.checked : source.value });
  });
  values.watch(draw);
  watch("current", mark);
  draw();
}
