/* Keyboard shortcuts: a key clicks or focuses an element of the page. Off while typing and while a dialog is open. */
const NAMES = { ArrowDown: "↓", ArrowUp: "↑", ArrowLeft: "←", ArrowRight: "→", " ": "Space", Escape: "Esc" };
const FIELDS = "input:not([type=checkbox]):not([type=radio]):not([type=button]), textarea, select";
const typing = (node) => node instanceof Element && (node.isContentEditable || node.matches(FIELDS));
const isVisible = (node) => node.getClientRects().length > 0 && !node.disabled;
const visible = (selector) => [...document.querySelectorAll(selector)].filter(isVisible);

function run({ act, target }) {
  const nodes = visible(target);
  if (!nodes.length) return false;
  if (act === "click") nodes[0].click();
  else if (act === "focus") { nodes[0].focus(); nodes[0].select?.(); }
  else {
    const at = nodes.findIndex((node) => node.contains(document.activeElement));
    const to = at < 0 ? 0 : Math.max(0, Math.min(nodes.length - 1, at + (act === "next" ? 1 : -1)));
    nodes[to].focus();
    nodes[to].scrollIntoView({ block: "nearest" });
  }
  return true;
}

function node(tag, text, ...children) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  made.append(...children);
  return made;
}

function help(groups) {
  if (document.querySelector("dialog[open]")) return;
  const list = node("dl", "");
  list.className = "rl-keys";
  for (const [name, keys] of groups) {
    const usable = keys.filter((key) => document.querySelector(key.target));
    if (usable.length) list.append(node("h3", name));
    for (const { keys: names, text } of usable) {
      const caps = names.split(" ").map((key) => node("kbd", NAMES[key] ?? key));
      list.append(node("dt", "", ...caps), node("dd", text));
    }
  }
  const close = node("button", "Close");
  close.className = "rl-button";
  const box = node("dialog", "", node("h2", "Keys"), list, close);
  box.className = "rl-dialog";
  box.setAttribute("aria-label", "Keys");
  close.onclick = () => box.close();
  box.onclose = () => box.remove();
  document.body.append(box);
  box.showModal();
}

/* The theme: Gradio follows the system; a choice of the user is kept in the browser and in other tabs. */
const THEME = "rl2f.theme";
function applyTheme() {
  const chosen = localStorage.getItem(THEME);
  if (chosen) document.body.classList.toggle("dark", chosen === "dark");
}
function switchTheme() {
  localStorage.setItem(THEME, document.body.classList.contains("dark") ? "light" : "dark");
  applyTheme();
}
addEventListener("storage", applyTheme);
new MutationObserver(applyTheme).observe(document.body, { attributes: true, attributeFilter: ["class"] });

function tool(text, title, click) {
  const made = node("button", text);
  Object.assign(made, { className: "rl-icon", type: "button", title, onclick: click });
  made.setAttribute("aria-label", title);
  return made;
}

/* The first element that Tab reaches; it moves the focus past the navigation bar. */
function addSkipLink() {
  const link = node("a", "Skip to the page");
  Object.assign(link, { className: "rl-skip", href: `${location.pathname}${location.search}#page` });
  link.onclick = (event) => {
    event.preventDefault(); // a change of the URL would trigger popstate
    const page = document.querySelector("main");
    page.tabIndex = -1;
    page.focus();
  };
  document.body.prepend(link);
}

export default function mount({ element, props, signal }) {
  document.documentElement.dataset.page = location.pathname.split("/")[1]; // for rules of the style sheet
  applyTheme();
  addSkipLink();
  const tools = node("div", "", tool("?", "Keys", () => help(props.groups)), tool("◐", "Light or dark", switchTheme));
  tools.className = "rl-frame-tools";
  element.replaceChildren(tools);
  const here = document.querySelector(".nav-holder a.active");
  if (here) here.parentElement.scrollLeft = here.offsetLeft - 60; // scrollIntoView would move the first Tab stop
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
    const name = `${event.ctrlKey || event.metaKey ? "Ctrl+" : ""}${event.altKey ? "Alt+" : ""}${event.key}`;
    const inField = typing(event.target);
    if (name === "Escape" && inField) { event.target.blur(); return; }
    if (name === "?" && !inField) { event.preventDefault(); help(props.groups); return; }
    if (name === "T" && !inField) { event.preventDefault(); switchTheme(); return; }
    for (const [, keys] of props.groups) {
      for (const key of keys) {
        if (!key.keys.split(" ").includes(name) || (inField && !key.typing)) continue;
        if (!run(key)) continue;
        event.preventDefault();
        return;
      }
    }
  }, { capture: true, signal });
}
