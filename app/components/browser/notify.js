/* A switch for desktop notifications of ended runs; the server is asked also while the tab is in the background. */
const KEY = "rl2f.notify";

export default function mount({ element, props, server, signal }) {
  if (!("Notification" in window)) return;
  let since = null;
  const on = () => Notification.permission === "granted" && localStorage.getItem(KEY) === "1";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "rl-button rl-quiet";
  button.title = "Show a desktop notification when a run ends";
  const draw = () => {
    button.textContent = on() ? "● Notifications on" : "○ Notify me";
    button.setAttribute("aria-pressed", on());
  };
  const poll = async () => {
    const found = on() ? await server.ended_runs(since).catch(() => null) : null;
    since = found ? found.time : on() ? since : null;
    for (const { title, text, url } of found?.runs ?? []) {
      const shown = new Notification(title, { body: text, tag: `${url} ${text}` });
      shown.onclick = () => { window.focus(); location.href = url; };
    }
  };
  button.onclick = async () => {
    const wanted = !on();
    if (wanted && (await Notification.requestPermission()) !== "granted") {
      button.textContent = "Blocked by the browser";
      return;
    }
    localStorage.setItem(KEY, wanted ? "1" : "");
    draw();
    poll();
  };
  draw();
  poll();
  const timer = setInterval(poll, 1000 * props.seconds);
  signal.addEventListener("abort", () => clearInterval(timer));
  element.replaceChildren(button);
}
