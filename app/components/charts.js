/* A grid of Plotly figures, updated in place: zoom stays, and only figures near the screen are drawn. */
const COLORS = new Set([
  "color", "bgcolor", "bordercolor", "gridcolor", "linecolor", "fillcolor", "paper_bgcolor", "plot_bgcolor",
]);
/* `_baseUrl`: clip paths must not name the address of the page, which changes: the browser would load it again. */
const CONFIG = {
  displaylogo: false, responsive: true, doubleClick: "reset", showTips: false, _baseUrl: "",
};
const coarse = matchMedia("(pointer: coarse)");
const plots = new Set();
let loading = null;
let drawing = Promise.resolve(); // figures are drawn one after the other, so that the first one is shown early

export function library(url) {
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

/* The buttons of a chart: Plotly's mode bar, which appears while the pointer is over the plot. */
function buttons({ Icons }, plot) {
  const make = (title, icon, click) => ({ name: title, title, icon: Icons[icon], click: () => setTimeout(click) });
  const first = [make("Enlarge, or close (Esc)", "autoscale", () => plot.enlarge())];
  if (plot.canBeLog) first.push(make("Logarithmic scale", "spikeline", () => { plot.log = !plot.log; plot.redraw(); }));
  const files = ["png", "svg"].map((format) => make(format.toUpperCase(), "camera", () => plot.save(format)));
  return [first, [...files, make("CSV", "disk", () => plot.table())],
    plot.arrange ? [make("Pin to the top, or unpin", "drawline", () => plot.arrange("pinned")),
      make("Hide", "zoom_minus", () => plot.arrange("hidden"))] : []];
}
const quoted = (text) => `"${String(text ?? "").replaceAll('"', '""')}"`;
const plain = (markup) => new DOMParser().parseFromString(markup, "text/html").body.textContent;
document.addEventListener("keydown", (event) => {
  const large = event.key === "Escape" && document.querySelector(".rl-chart.rl-large .rl-plot");
  if (large) large.rlPlot.enlarge();
});

class Plot {
  constructor(url, onPoint) {
    Object.assign(this, { url, onPoint, near: false, queued: false, stale: false, text: "" });
    this.node = document.createElement("div");
    this.node.className = "rl-plot rl-clickable";
    this.node.setAttribute("role", "group");
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
  get canBeLog() {
    const { data, layout } = this.figure;
    return layout.yaxis?.fixedrange && data.some(({ meta, stackgroup }) => meta === "line" && !stackgroup);
  }
  redraw() { this.stale = true; this.draw(); }
  enlarge() {
    this.node.closest(".rl-chart").classList.toggle("rl-large");
    this.redraw();
  }
  save(format) {
    const { width, height } = this.node.getBoundingClientRect();
    const background = getComputedStyle(this.node.closest(".rl-card")).backgroundColor;
    const layout = { ...this.node.layout, paper_bgcolor: background, title: { text: this.name, font: { size: 13 } } };
    const figure = { data: this.node.data, layout: { ...layout, margin: { ...layout.margin, t: 34 } } };
    return window.Plotly.downloadImage(figure, { format, width, height: height + 18, scale: 2, filename: this.name });
  }
  table() {
    const lines = this.figure.data.filter(({ meta }) => meta === "line" || meta === "row");
    const along = [...new Set(lines.flatMap(({ x }) => x))].filter((x) => x !== null);
    const head = [plain(this.figure.layout.xaxis?.title?.text ?? "x"), ...lines.map(({ name }) => plain(name))];
    const rows = along.map((x) => [x, ...lines.map((line) => line.y[line.x.indexOf(x)])]);
    const text = [head, ...rows].map((row) => row.map(quoted).join(",")).join("\n");
    const link = Object.assign(document.createElement("a"), { download: `${this.name}.csv` });
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  /* A logarithmic axis has a legend: the labels at the ends of lines have positions on the linear axis. */
  makeLog({ data, layout }) {
    const yaxis = { ...layout.yaxis, type: "log", autorange: true, tickformat: "~g" };
    delete yaxis.range;
    const annotations = layout.annotations.filter(({ yref }) => yref !== "y");
    const showlegend = data.filter(({ meta }) => meta === "line").length > 1;
    Object.assign(layout, { yaxis, annotations, showlegend });
    const legend = showlegend ? 19 * Math.ceil(data.filter(({ meta }) => meta === "line").length / 2) + 6 : 0;
    layout.margin = { ...layout.margin, r: 10, b: layout.margin.b + legend };
    layout.height += legend;
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
    if (this.log) this.makeLog({ data, layout });
    if (this.node.closest(".rl-large")) layout.height = this.node.clientHeight;
    else this.node.style.height = `${layout.height}px`;
    this.config ??= { ...CONFIG, modeBarButtons: buttons(Plotly, this) };
    await Plotly.react(this.node, data, layout, this.config);
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

export default function mount({ element, props, trigger, signal, values }) {
  const grid = text("div", "rl-charts");
  const cards = new Map();
  const hiddenBar = text("p", "rl-small rl-muted rl-row");
  element.replaceChildren(grid, ...(props.arrange ? [hiddenBar] : []));
  const place = `rl2f.charts.${props.arrange}`;
  const stored = () => (props.arrange && localStorage.getItem(place)) || "{}";
  const kept = () => ({ pinned: [], hidden: [], order: [], ...JSON.parse(stored()) });
  const keep = (change) => { localStorage.setItem(place, JSON.stringify({ ...kept(), ...change })); draw(); };
  const toggle = (list, key) => {
    const keys = kept()[list];
    keep({ [list]: keys.includes(key) ? keys.filter((each) => each !== key) : [...keys, key] });
  };
  let dragged = null;
  const sortable = (card, caption, key) => {
    caption.draggable = true;
    caption.ondragstart = () => { dragged = key; };
    card.ondragover = (event) => event.preventDefault();
    card.ondrop = (event) => {
      event.preventDefault();
      const shown = [...cards.keys()].sort((a, b) => cards.get(a).rank - cards.get(b).rank);
      const order = shown.filter((each) => each !== dragged);
      if (dragged && dragged !== key) keep({ order: order.toSpliced(order.indexOf(key), 0, dragged) });
      dragged = null;
    };
  };
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
    if (props.arrange) {
      made.plot.arrange = (list) => toggle(list, key);
      sortable(card, caption, key);
    }
    card.append(caption, made.plot.node, made.note);
    return made;
  };
  const draw = () => {
    const all = values.get() ?? [];
    const { pinned, hidden, order } = kept();
    const position = ({ key }, i) => {
      if (pinned.includes(key)) return pinned.indexOf(key) - 1e6;
      return order.includes(key) ? order.indexOf(key) : 1e3 + i;
    };
    const ranks = new Map(all.map((chart, i) => [chart.key, position(chart, i)]));
    const charts = all.filter(({ key }) => !hidden.includes(key)).sort((a, b) => ranks.get(a.key) - ranks.get(b.key));
    hiddenBar.replaceChildren(...all.filter(({ key }) => hidden.includes(key)).map(({ key, title }) => {
      const show = Object.assign(text("button", "rl-button rl-small"), { textContent: `Show ${title}` });
      show.onclick = () => toggle("hidden", key);
      return show;
    }));
    const keys = new Set(charts.map((chart) => chart.key));
    for (const [key, made] of cards) if (!keys.has(key)) { made.plot.remove(); made.card.remove(); cards.delete(key); }
    charts.forEach((chart, i) => {
      if (!cards.has(chart.key)) cards.set(chart.key, make(chart.key));
      const made = cards.get(chart.key);
      made.rank = i;
      made.plot.name = chart.title;
      made.title.textContent = `${pinned.includes(chart.key) ? "★ " : ""}${chart.title}`;
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
  signal.addEventListener("abort", () => cards.forEach(({ plot }) => plot.remove()));
  values.watch(draw);
  draw();
}
