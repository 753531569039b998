/* The query of the URL: read when the page opens and on Back and Forward, written when Python returns another one.
   A value that begins with a slash is another page, which is opened. */
export default function mount({ props, trigger, watch }) {
  const read = () => location.search.slice(1);
  const go = () => { props.value = read(); trigger("input"); };
  const retitle = () => {
    const title = `${props.title} · RL2F Studio`;
    if (document.title !== title) document.title = title;
  };
  retitle();
  new MutationObserver(retitle).observe(document.querySelector("title"), { childList: true });
  watch("title", retitle);
  watch("value", () => {
    const replaces = props.value?.startsWith("~");
    const now = (props.value ?? "").slice(replaces ? 1 : 0);
    if (now.startsWith("/")) {
      props.value = read();
      location.href = now;
    } else if (new URLSearchParams(now).toString() !== new URLSearchParams(read()).toString()) {
      history[replaces ? "replaceState" : "pushState"](null, "", `${location.pathname}${now ? "?" : ""}${now}`);
    }
  });
  addEventListener("popstate", go);
  setTimeout(go, 0); // props that are set while the component mounts are overwritten
}
