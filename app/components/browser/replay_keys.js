/* What the browser changes in a replay without the server: the current turn, folded parts, and the font of texts. */
const PREFERENCES = "rl2f.preferences";
const preferences = () => JSON.parse(localStorage.getItem(PREFERENCES) ?? "{}") ?? {};
const SETTLE_MS = 1500; // the page lays out its panes after a dialogue has opened
const current = () => document.querySelector(".dv-turn[data-current]");

/** Make a turn the current one, in the address too. */
function show(turn) {
  const last = current();
  if (!turn || turn === last) return;
  last?.removeAttribute("data-current");
  last?.removeAttribute("aria-current");
  turn.setAttribute("data-current", "");
  turn.setAttribute("aria-current", "true");
  const scroll = () => turn.scrollIntoView({ block: "nearest" });
  if (last) scroll();
  else if (turn.dataset.turn !== "0") {
    const sizes = new ResizeObserver(scroll); // calls it at once, too
    for (const box of [turn.closest(".dv"), turn.closest("#dl-pane")]) if (box) sizes.observe(box);
    setTimeout(() => sizes.disconnect(), SETTLE_MS);
  }
  if (last) history.replaceState(history.state, "", location.href.replace(/([?&]turn=)\d+/, `$1${turn.dataset.turn}`));
}

/** Select the turn with which a dialogue opens. A drawing of the server changes no turn that is selected. */
function selectFirst() {
  const dialogue = current() ? null : document.querySelector(".dv[data-turn]");
  show(dialogue?.querySelector(`.dv-turn[data-turn="${dialogue.dataset.turn}"]`));
}

/** Go to another turn; tokens that are shown follow. */
function go(turn) {
  if (!turn || turn === current()) return;
  const hasTokens = document.querySelector(".dv-token-view");
  show(turn);
  if (hasTokens) turn.querySelector(".dv-tok").click();
}

function goBy(step) {
  const turns = [...document.querySelectorAll(".dv-turn")];
  go(turns[turns.indexOf(current()) + step]);
}

export default function mount({ signal }) {
  let isOpen = false;
  const fold = (parent) => { for (const part of parent.querySelectorAll("details[data-fold]")) part.open = isOpen; };
  const foldAll = (open) => { isOpen = open; fold(document); };
  const style = document.documentElement.dataset;
  style.font = preferences().font ?? "mono";
  const actions = {
    turn: go,
    next_turn: () => goBy(1),
    previous_turn: () => goBy(-1),
    turn_tokens: () => current()?.querySelector(".dv-tok").click(),
    expand: () => foldAll(true),
    collapse: () => foldAll(false),
    font: () => {
      style.font = style.font === "mono" ? "reading" : "mono";
      localStorage.setItem(PREFERENCES, JSON.stringify({ ...preferences(), font: style.font }));
    },
  };
  document.addEventListener("click", (event) => {
    const source = event.target.closest("[data-action]");
    if (source?.dataset.action === "tokens") show(source.closest(".dv-turn"));
    if (!Object.hasOwn(actions, source?.dataset.action)) return;
    event.stopPropagation(); // no event of the View
    actions[source.dataset.action](source);
  }, { capture: true, signal });
  selectFirst();
  const drawings = new MutationObserver((records) => {
    selectFirst();
    const added = isOpen ? records.flatMap(({ addedNodes }) => [...addedNodes]) : [];
    added.filter((node) => node.querySelectorAll).forEach(fold);
  });
  drawings.observe(document.body, { childList: true, subtree: true });
  signal.addEventListener("abort", () => drawings.disconnect());
}
