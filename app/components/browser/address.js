/* The query of the URL: read when the page opens and on Back and Forward, written when Python returns another one.
   A value that begins with a slash is another page, which is opened.

   Pages of the studio open in the same document: Gradio mounts the next page, and the browser neither loads nor
   evaluates its scripts again. The browser itself opens all other addresses, and each page after a restart of the
   server. */
const MAX_CHANGES = 25; // then the browser loads a page: Gradio keeps 1 to 2 MB of each page that was left
const isPage = (url) => url.origin === location.origin && !url.hash
  && window.gradio_config.pages.some(([path]) => url.pathname === `/${path}`);
const PAUSE_MS = 1000; // after a page has opened, before what the next one needs is loaded
const QUIET_MS = 500; // after the last input, before the next layout is loaded
const layouts = new Map(); // what Gradio mounts, by path, until the server restarts
let wanted = null; // the last address that was asked for
let changes = 0;
let lastInput = 0;
let opens = false; // Gradio mounts a page and reads gradio_config and the path: then the browser loads the next one

const get = async (path) => {
  const answer = await fetch(path).catch(() => null);
  return answer?.ok ? answer.json().catch(() => null) : null;
};

async function layout({ pathname }) {
  if (!layouts.has(pathname)) layouts.set(pathname, get(`/config?page=${encodeURIComponent(pathname.slice(1))}`));
  const found = await layouts.get(pathname);
  if (!found) layouts.delete(pathname);
  return found;
}

async function show(url, pushes) {
  wanted = url;
  const [found, server] = await Promise.all([layout(url), get("/gradio_api/app_id")]);
  if (wanted !== url) return;
  if (opens || !found || server?.app_id !== window.gradio_config.app_id || ++changes > MAX_CHANGES) {
    if (pushes) location.assign(url);
    else location.reload();
    return;
  }
  opens = true;
  window.rlPage.abort(); // our modules remove their listeners from the document
  delete window.rlPage;
  const app = document.querySelector("gradio-app");
  const { parentNode, nextSibling } = app;
  const config = structuredClone(found); // Gradio changes it
  app.remove(); // unmounts the page
  app.replaceChildren(); // else an event that ends with its connection shows an error until the next page is mounted
  dispatchEvent(new Event("beforeunload")); // Gradio closes its connections
  await new Promise((closed) => setTimeout(closed));
  if (pushes) history.pushState(null, "", url);
  for (const node of document.querySelectorAll("body > dialog, body > .rl-skip")) node.remove();
  const own = config.page[config.current_page];
  // The document has the head. Gradio takes the layout of the path, which Back may change while it mounts: then of "".
  window.gradio_config = { ...config, head: "", page: { "": own, [config.current_page]: own } };
  parentNode.insertBefore(app, nextSibling); // mounts the next page
  scrollTo(0, 0);
}

function open(url) {
  if (isPage(url)) show(url, true);
  else location.assign(url);
}

addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const isPlain = !event.button && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
  if (event.defaultPrevented || !isPlain || !link || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  if (!isPage(url) || !["", "_self"].includes(link.target)) return;
  event.preventDefault();
  show(url, true);
});
for (const type of ["pointerdown", "keydown"]) {
  addEventListener(type, () => { lastInput = performance.now(); }, true);
}
addEventListener("pointerover", ({ target }) => {
  const link = target.closest?.("a[href]");
  const url = link && new URL(link.href);
  if (url && isPage(url) && url.pathname !== location.pathname) layout(url);
});
addEventListener("popstate", () => {
  wanted = null;
  if (opens) location.reload();
  else if (location.pathname !== `/${window.gradio_config.current_page}`) show(new URL(location.href), false);
});

export default function mount({ props, trigger, watch, signal }) {
  opens = false;
  const path = location.pathname;
  const read = () => location.search.slice(1);
  const go = () => {
    if (location.pathname !== path) return; // another page is opening
    props.value = read();
    trigger("input");
  };
  const retitle = () => {
    const title = `${props.title} · RL2F Studio`;
    if (document.title !== title) document.title = title;
  };
  retitle();
  const titles = new MutationObserver(retitle);
  titles.observe(document.querySelector("title"), { childList: true });
  signal.addEventListener("abort", () => titles.disconnect());
  watch("title", retitle);
  watch("value", () => {
    if (signal.aborted) return;
    const replaces = props.value?.startsWith("~");
    const now = (props.value ?? "").slice(replaces ? 1 : 0);
    if (now.startsWith("/")) {
      props.value = read();
      open(new URL(now, location.href));
    } else if (new URLSearchParams(now).toString() !== new URLSearchParams(read()).toString()) {
      history[replaces ? "replaceState" : "pushState"](null, "", `${location.pathname}${now ? "?" : ""}${now}`);
    }
  });
  addEventListener("popstate", go, { signal });
  const preload = async () => {
    if (signal.aborted) return;
    import(location.origin + props.charts).then((module) => module.library(props.library)).catch(() => {});
    for (const [path] of window.gradio_config.pages) {
      while (performance.now() < lastInput + QUIET_MS) await new Promise((end) => setTimeout(end, QUIET_MS));
      if (!path.startsWith("_") && !signal.aborted) await layout({ pathname: `/${path}` });
    }
  };
  setTimeout(() => (window.requestIdleCallback ?? setTimeout)(preload), PAUSE_MS);
  setTimeout(go, 0); // props that are set while the component mounts are overwritten
}
