/* A grid of Plotly figures, updated in place: zoom stays, and only figures near the screen are drawn. */
const COLORS = new Set([
  "color", "bgcolor", "bordercolor", "gridcolor", "linecolor", "fillcolor", "paper_bgcolor", "plot_bgcolor",
]);
/* `_baseUrl`: clip paths must not name the address of the page, which changes: the browser would load it again. */
const CONFIG = {
  displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false, _baseUrl: "",
};
const coarse = matchMedia("(pointer: coarse)");
const plots = new Set();
let loading = null;
let drawing = Promise.resolve(); // figures are drawn one after the other, so that the first one is shown early

function library(url) {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => { loading = null; script.remove(); reject(new Error("plotly.js did not load")); };
    document.head.append(script);
  });
  return loading;
}

/* Colors: `--rl-student`, `fade(--rl-student,0.2)` and `mix(--a,--b,0.4)` of the page's theme. */
const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
function rgba(text) {
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = text;
  pen.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
}
function split(text) {
  const parts = [""];
  let depth = 0;
  for (const c of text) {
    depth += c === "(" ? 1 : c === ")" ? -1 : 0;
    if (c === "," && depth === 0) parts.push("");
    else parts[parts.length - 1] += c;
  }
  return parts.map((part) => part.trim());
}
function color(text, style) {
  const call = text.match(/^(fade|mix)\((.*)\)$/);
  if (!call) return text.startsWith("--") ? rgba(style.getPropertyValue(text).trim() || "#888") : rgba(text);
  const parts = split(call[2]);
  const fraction = Number(parts.at(-1));
  const a = color(parts[0], style);
  if (call[1] === "fade") return [a[0], a[1], a[2], a[3] * fraction];
  const b = color(parts[1], style);
  return a.map((v, i) => v + (b[i] - v) * fraction);
}
function painted(value, style, key = "") {
  if (Array.isArray(value)) {
    return typeof value[0] === "object" && value[0] !== null ? value.map((each) => painted(each, style)) : value;
  }
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, painted(each, style, name)]));
  }
  if (typeof value !== "string" || !COLORS.has(key) || !/^(--|fade\(|mix\()/.test(value)) return value;
  const [r, g, b, a] = color(value, style);
  return `rgba(${Math.round(r)},${Math.round(g)},${Math.round(b)},${Number(a.toFixed(3))})`;
}

const near = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.rlPlot.near = isIntersecting;
    if (isIntersecting) target.rlPlot.draw();
  }
}, { rootMargin: "240px 0px" });

class Plot {
  constructor(url, onPoint) {
    Object.assign(this, { url, onPoint, near: false, queued: false, stale: false, text: "" });
    this.node = document.createElement("div");
    this.node.className = "rl-plot rl-clickable";
    this.node.setAttribute("role", "img");
    this.node.rlPlot = this;
    near.observe(this.node);
    plots.add(this);
  }
  set({ figure, words }) {
    const text = JSON.stringify(figure);
    if (text === this.text) return;
    Object.assign(this, { text, figure, stale: true });
    this.node.style.height = `${figure.layout.height}px`;
    this.node.setAttribute("aria-label", words);
    this.draw();
  }
  draw() {
    if (!this.stale || !this.near || this.queued) return;
    this.queued = true;
    drawing = drawing.then(() => this.paint()).catch(reportError).then(() => new Promise((done) => setTimeout(done)));
  }
  async paint() {
    this.queued = false;
    if (!this.stale || !this.near) return;
    this.stale = false;
    let Plotly;
    try { Plotly = await library(this.url); } catch {
      this.node.textContent = "The plot library did not load. Reload the page.";
      return;
    }
    if (!this.node.isConnected) { this.stale = true; return; }
    const { data, layout } = painted(this.figure, getComputedStyle(document.documentElement));
    const uirevision = layout.xaxis?.title?.text ?? "1"; // the zoom stays while the x axis is the same
    Object.assign(layout, { autosize: true, uirevision, dragmode: coarse.matches ? false : "zoom" });
    await Plotly.react(this.node, data, layout, CONFIG);
    if (!this.bound) {
      this.bound = true;
      this.node.on("plotly_click", ({ points }) => {
        const point = points.find((each) => each.customdata !== undefined && each.customdata !== null);
        if (point) this.onPoint(point.customdata);
      });
    }
    this.node.dataset.drawn = String(Number(this.node.dataset.drawn ?? 0) + 1);
  }
  remove() {
    near.unobserve(this.node);
    plots.delete(this);
    if (this.bound) window.Plotly.purge(this.node);
  }
}
function redraw() {
  for (const plot of plots) {
    plot.stale = Boolean(plot.figure);
    plot.draw();
  }
}
new MutationObserver(() => requestAnimationFrame(redraw))
  .observe(document.body, { attributes: true, attributeFilter: ["class"] });

function text(tag, className = "") {
  const made = document.createElement(tag);
  made.className = className;
  return made;
}

export default function mount({ element, props, trigger, watch }) {
  const grid = text("div", "rl-charts");
  const cards = new Map();
  element.replaceChildren(grid);
  const make = (key) => {
    const card = text("figure", "rl-card rl-chart");
    const made = { card, title: text("b"), unit: text("span", "rl-muted"), note: text("p", "rl-chart-note rl-muted") };
    made.plot = new Plot(props.library, (point) => trigger("select", { key, point }));
    const caption = text("figcaption");
    Object.assign(made, { help: text("details", "rl-help"), sign: text("summary") });
    Object.assign(made, { about: text("p"), formula: text("p", "rl-formula") });
    const box = text("div");
    box.append(made.about, made.formula);
    made.help.append(made.sign, box);
    made.help.setAttribute("name", "rl-help");
    made.sign.textContent = "?";
    caption.append(made.title, made.help, made.unit);
    if (props.closable) {
      const close = text("button", "rl-icon");
      close.textContent = "×";
      close.setAttribute("aria-label", "Close the chart");
      close.onclick = () => trigger("delete", { key });
      caption.append(close);
    }
    card.dataset.key = key;
    card.append(caption, made.plot.node, made.note);
    return made;
  };
  const draw = () => {
    const charts = props.value ? JSON.parse(props.value) : [];
    const keys = new Set(charts.map((chart) => chart.key));
    for (const [key, made] of cards) if (!keys.has(key)) { made.plot.remove(); made.card.remove(); cards.delete(key); }
    charts.forEach((chart, i) => {
      if (!cards.has(chart.key)) cards.set(chart.key, make(chart.key));
      const made = cards.get(chart.key);
      made.title.textContent = chart.title;
      made.title.title = (chart.names ?? []).join(", ");
      made.about.textContent = chart.help ?? "";
      made.formula.textContent = chart.formula ?? "";
      made.help.hidden = !chart.help && !chart.formula;
      made.sign.setAttribute("aria-label", `Explain ${chart.title}`);
      made.unit.textContent = chart.unit ?? "";
      made.note.textContent = chart.note ?? "";
      made.note.hidden = !chart.note;
      if (grid.children[i] !== made.card) grid.insertBefore(made.card, grid.children[i] ?? null);
      made.plot.set(chart);
    });
  };
  library(props.library).catch(() => {});
  watch("value", draw);
  draw();
}
