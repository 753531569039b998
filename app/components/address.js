/* The query of the URL: read when the page opens and on Back and Forward, written when Python returns another one. */
export default function mount({ element, props, trigger, watch }) {
  const read = () => location.search.slice(1);
  const go = () => { props.value = read(); trigger("input"); };
  document.title = `${props.title} · RL2F Studio`;
  new MutationObserver(() => {
    const title = `${element.dataset.title ?? props.title} · RL2F Studio`;
    if (document.title !== title) document.title = title;
  }).observe(document.querySelector("title"), { childList: true });
  watch("value", () => {
    const now = props.value ?? "";
    if (new URLSearchParams(now).toString() !== new URLSearchParams(read()).toString()) history.pushState(null, "", `${location.pathname}${now ? "?" : ""}${now}`);
  });
  addEventListener("popstate", go);
  setTimeout(go, 0); // props that are set while the component mounts are overwritten
}
