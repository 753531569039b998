"use strict";
/* Plots: figures come from the server as plotly.js takes them, with names of CSS variables for colours. A grid keeps its
   plots by key and redraws them in place; what is not on the screen is drawn when it gets there. */
(() => {
  const { el } = rl2f;
  const COLORS = new Set(["color", "bgcolor", "bordercolor", "gridcolor", "linecolor", "fillcolor", "paper_bgcolor", "plot_bgcolor"]);
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
  const coarse = matchMedia("(pointer: coarse)");
  const drawn = new Set();

  /* ---- The library: fetched once, when the first plot is wanted ---- */
  let loading = null;
  function library(url) {
    loading ??= new Promise((resolve, reject) => {
      const script = el("script", { src: url });
      script.onload = () => resolve(window.Plotly);
      script.onerror = () => { loading = null; script.remove(); reject(new Error("plotly.js did not load")); };
      document.head.append(script);
    });
    return loading;
  }

  /* ---- Colours: `--rl-student`, `fade(--rl-student,0.2)`, `mix(--a,--b,0.4)` in the page's theme ---- */
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  function rgba(text) {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = "#000";
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }
  function painter() {
    const style = getComputedStyle(document.documentElement);
    const known = new Map();
    const named = (name) => rgba(style.getPropertyValue(name).trim() || "#888");
    function parse(text) {
      const call = text.match(/^(fade|mix)\((.*)\)$/);
      if (!call) return text.startsWith("--") ? named(text) : rgba(text);
      const parts = [];
      let depth = 0, start = 0;
      for (let i = 0; i <= call[2].length; i++) {
        const c = call[2][i];
        if (c === "(") depth++;
        if (c === ")") depth--;
        if (i === call[2].length || (c === "," && depth === 0)) { parts.push(call[2].slice(start, i).trim()); start = i + 1; }
      }
      const share = Number(parts.at(-1));
      const a = parse(parts[0]);
      if (call[1] === "fade") return [a[0], a[1], a[2], a[3] * share];
      const b = parse(parts[1]);
      return a.map((v, i) => v + (b[i] - v) * share);
    }
    return (text) => {
      if (!known.has(text)) {
        const [r, g, b, a] = parse(text);
        known.set(text, `rgba(${Math.round(r)},${Math.round(g)},${Math.round(b)},${Number(a.toFixed(3))})`);
      }
      return known.get(text);
    };
  }
  function painted(value, paint, key = "") {
    if (Array.isArray(value)) return typeof value[0] === "object" && value[0] !== null ? value.map((v) => painted(v, paint)) : value;
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, paint, k)]));
    return typeof value === "string" && COLORS.has(key) && /^(--|fade\(|mix\()/.test(value) ? paint(value) : value;
  }

  /* ---- One plot ---- */
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) entry.target.rlPlot?.show(true); else entry.target.rlPlot?.show(false);
  }, { rootMargin: "240px 0px" });

  class Plot {
    constructor(url, onPoint) {
      this.url = url;
      this.onPoint = onPoint;
      this.visible = false;
      this.stale = false;
      this.node = el("div", { class: "rl-plot", role: "img" });
      this.node.rlPlot = this;
      seen.observe(this.node);
      drawn.add(this);
    }
    set(figure, words) {
      const text = JSON.stringify(figure);
      if (text === this.text) return;
      this.text = text;
      this.figure = figure;
      this.node.style.height = `${figure.layout.height}px`;
      this.node.setAttribute("aria-label", words);
      this.stale = true;
      if (this.visible) this.draw();
    }
    show(visible) {
      this.visible = visible;
      if (visible && this.stale) this.draw();
    }
    async draw() {
      this.stale = false;
      let Plotly;
      try { Plotly = await library(this.url); } catch (error) {
        this.stale = true;
        this.node.textContent = "The plot library did not load. Reload the page.";
        return;
      }
      if (!this.node.isConnected) { this.stale = true; return; }
      const { data, layout } = painted(this.figure, painter());
      layout.autosize = true;
      layout.uirevision = this.text.length && this.figure.layout.xaxis.title.text;
      layout.dragmode = coarse.matches ? false : "zoom";
      await Plotly.react(this.node, data, layout, CONFIG);
      if (this.onPoint && !this.bound) {
        this.bound = true;
        this.node.on("plotly_click", (event) => {
          const point = event.points.find((p) => p.customdata);
          if (point) this.onPoint(point.customdata, event.event);
        });
      }
      this.node.dataset.drawn = String(Number(this.node.dataset.drawn ?? 0) + 1);
    }
    repaint() {
      if (!this.figure) return;
      this.stale = true;
      if (this.visible) this.draw();
    }
    remove() {
      seen.unobserve(this.node);
      drawn.delete(this);
      if (window.Plotly && this.bound) window.Plotly.purge(this.node);
    }
  }
  document.addEventListener("rl2f:theme", () => requestAnimationFrame(() => drawn.forEach((plot) => plot.repaint())));

  /* ---- A grid of plots ---- */
  class Grid {
    /** `onPoint(at, chart)` hears clicks; `onClose(key)` puts a cross on each plot. */
    constructor(url, { onPoint = null, onClose = null, wide = false } = {}) {
      Object.assign(this, { url, onPoint, onClose });
      library(url).catch(() => {});  // on its way while the figures are
      this.node = el("div", { class: `rl-charts${wide ? " rl-wide" : ""}` });
      this.held = new Map();
    }
    set(charts) {
      const keys = new Set(charts.map((chart) => chart.key));
      for (const [key, held] of this.held) if (!keys.has(key)) { held.plot.remove(); held.card.remove(); this.held.delete(key); }
      charts.forEach((chart, i) => {
        let held = this.held.get(chart.key);
        if (!held) {
          held = this.card(chart);
          this.held.set(chart.key, held);
        }
        held.chart = chart;
        held.title.textContent = chart.title;
        held.title.title = chart.help || chart.names.join(", ");
        held.unit.textContent = chart.unit;
        held.note.textContent = chart.note;
        held.note.hidden = !chart.note;
        if (this.node.children[i] !== held.card) this.node.insertBefore(held.card, this.node.children[i] ?? null);
        held.plot.set(chart.figure, chart.words);
      });
    }
    card(chart) {
      const held = {};
      held.plot = new Plot(this.url, this.onPoint && ((at) => this.onPoint(at, held.chart)));
      if (this.onPoint) held.plot.node.classList.add("rl-clickable");
      held.title = el("b");
      held.unit = el("span", { class: "rl-muted" });
      held.note = el("p", { class: "rl-chart-note rl-muted" });
      const close = this.onClose && el("button", { type: "button", class: "rl-icon", "aria-label": `Close ${chart.title}`, onclick: () => this.onClose(chart.key) }, "×");
      held.card = el("figure", { class: "rl-card rl-chart", dataset: { key: chart.key } },
        el("figcaption", {}, held.title, held.unit, close), held.plot.node, held.note);
      return held;
    }
  }

  /** A value with its interval as a small picture: the point, the interval, the line of no difference. */
  function whisker(cell, low, high) {
    const [width, height] = [84, 14];
    const at = (v) => ((v - low) / (high - low || 1)) * (width - 6) + 3;
    const color = cell.low !== null && (cell.low > 0 || cell.high < 0) ? "var(--rl-text)" : "var(--rl-muted)";
    return el("svg:svg", { class: "rl-whisker", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" },
      el("svg:line", { x1: at(0), x2: at(0), y1: 1, y2: height - 1, stroke: "var(--rl-border-strong)" }),
      cell.low === null ? null : el("svg:line", { x1: at(cell.low), x2: at(cell.high), y1: height / 2, y2: height / 2, stroke: color, "stroke-width": 2 }),
      el("svg:circle", { cx: at(cell.value), cy: height / 2, r: 3, fill: color }));
  }

  rl2f.charts = { Grid, Plot, whisker, painter };
})();
