/* The selected words of a text block, in code points. Pieces of text have their position in `data-o`. */
const length = (piece) => (piece.dataset.one ? 1 : Array.from(piece.textContent).length);

function position(block, place, at) {
  if (place.nodeType === Node.TEXT_NODE) {
    const piece = place.parentElement.closest("[data-o]");
    if (!piece) return null;
    return Number(piece.dataset.o) + (piece.dataset.one ? Math.min(at, 1) : Array.from(place.data.slice(0, at)).length);
  }
  const next = place.childNodes[at]; // between two children: where the next piece starts, else where the last one ends
  const first = next && (next.dataset?.o !== undefined ? next : next.querySelector?.("[data-o]"));
  if (first) return Number(first.dataset.o);
  const last = [...block.querySelectorAll("[data-o]")].filter((piece) => place.contains(piece)).at(-1);
  return last ? Number(last.dataset.o) + length(last) : null;
}

export function selected() {
  const selection = document.getSelection();
  if (!selection.rangeCount) return undefined;
  const range = selection.getRangeAt(0);
  const block = range.startContainer.parentElement?.closest("[data-select]");
  if (!block?.contains(range.endContainer)) return undefined;
  const start = position(block, range.startContainer, range.startOffset);
  const end = position(block, range.endContainer, range.endOffset);
  return start !== null && end !== null && start < end ? { key: block.dataset.select, start, end } : null;
}

export default function mount({ props, watch, signal }) {
  document.addEventListener("selectionchange", () => {
    const span = selected(); // undefined outside of a block: a click on a button keeps the span
    if (span !== undefined) props.value = span ? JSON.stringify(span) : "";
  }, { signal });
  watch("value", () => { if (!props.value && selected()) document.getSelection().removeAllRanges(); });
}
