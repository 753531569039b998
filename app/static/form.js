"use strict";
/* A form drawn from a description of config classes (`/api/form/spec`). It knows no field by name: what there is, with
   bounds, choices, defaults and help, comes from the server, and so does what is wrong. Text goes through textContent. */
(() => {
  const { el } = rl2f;
  const same = (a, b) => a === b || (a !== null && b !== null && typeof a === "object" && typeof b === "object" && JSON.stringify(a) === JSON.stringify(b));
  const copy = (value) => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));
  const isMap = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const SHORT = new Set(["integer", "number", "string", "boolean", "choice"]);
  const dotted = (path) => path.join(".");
  const INTEGER = /^[+-]?\d+$/;
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
  /** What was typed into a field for numbers: a number where a browser keeps it exactly, else the text as it stands. */
  function parseNumber(text) {
    const word = text.trim();
    if (INTEGER.test(word)) return Number.isSafeInteger(Number(word)) ? Number(word) : word;
    return NUMBER.test(word) && isFinite(Number(word)) ? Number(word) : word;
  }
  /** Words with `code` in backquotes, as nodes. */
  const words = (text) => text.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
  /** `1 … 64`, `≥ 1`, `> 0`: what a number may be; limits that nobody meets are left out. */
  const bounds = (node) => {
    const far = (n) => (n === undefined || Math.abs(n) >= 1e9 ? undefined : n);
    const low = far(node.minimum ?? node.exclusiveMinimum), high = far(node.maximum ?? node.exclusiveMaximum);
    if (low !== undefined && low === high) return `only ${low}`;
    if (low !== undefined && high !== undefined) return `${node.minimum === undefined ? "> " : ""}${low} … ${node.maximum === undefined ? "< " : ""}${high}`;
    if (low !== undefined) return `${node.minimum === undefined ? ">" : "≥"} ${low}`;
    return high === undefined ? "" : `${node.maximum === undefined ? "<" : "≤"} ${high}`;
  };

  const TWO = () => el("svg:svg", { viewBox: "0 0 16 16", width: 14, height: 14, fill: "none", stroke: "currentColor", "stroke-width": 1.4, "aria-hidden": "true" },
    el("svg:rect", { x: 5.5, y: 5.5, width: 8, height: 8, rx: 1.5 }), el("svg:path", { d: "M3.5 10.5h-1v-8h8v1" }));

  class Form {
    /** `changed(data)` is called after every edit by a person. */
    constructor(root, changed) {
      Object.assign(this, { root, changed, spec: null, data: null, known: {}, errors: [], open: new Map(), memory: new Map(), places: new Map(), serial: 0 });
    }

    /** Show data; what is typed at the moment keeps its caret, what is folded open stays open. */
    show(spec, data, known = this.known) {
      const unchanged = this.spec === spec && this.known === known && same(this.data, data);
      Object.assign(this, { spec, known, data: copy(data) });
      if (!unchanged) this.render();
    }

    /** The same data as the server understands it; drawn anew only where it differs. */
    settle(spec, data) {
      if (this.spec === spec && same(this.data, data)) return;
      Object.assign(this, { spec, data: copy(data) });
      this.render();
    }

    // -- values ----------------------------------------------------------------------------------------------------
    get(path) {
      return path.reduce((value, key) => (value === null || value === undefined ? undefined : value[key]), this.data);
    }

    /** Set one value. `redraw` where the shape of the form changes with it. */
    set(path, value, redraw = false) {
      let holder = this.data;
      for (const key of path.slice(0, -1)) {
        if (holder[key] === null || typeof holder[key] !== "object") holder[key] = {};
        holder = holder[key];
      }
      holder[path.at(-1)] = value;
      if (redraw) this.render();
      else this.mark(path);
      this.changed(this.data);
    }

    remove(path) {
      const holder = this.get(path.slice(0, -1));
      if (Array.isArray(holder)) holder.splice(path.at(-1), 1);
      else delete holder[path.at(-1)];
      this.render();
      this.changed(this.data);
    }

    fieldsOf(node, value) {
      if (node.kind === "object") return node.fields;
      return this.spec.components[node.component]?.[value?.type]?.fields ?? [];
    }

    /** The value that a new thing begins with. What is required and has no default is left out, but for items that a
     * list must have, and numbers where a `seed` is given: what stood there before. */
    blank(node, seed) {
      switch (node.kind) {
        case "object": return this.blankFields(node.fields, seed);
        case "component": return this.blankComponent(node, node.types[0]);
        case "list": return [];
        case "tuple": return node.items.map((item) => this.blank(item));
        case "map": return {};
        case "union": return this.blank(node.options[0]);
        case "choice": return node.values[0];
        case "boolean": return false;
        case "integer": return node.minimum ?? (node.exclusiveMinimum === undefined ? 0 : node.exclusiveMinimum + 1);
        case "number": return node.minimum ?? node.exclusiveMinimum ?? 0;
        case "string": return "";
        default: return null;
      }
    }

    blankFields(fields, seed) {
      const made = {};
      for (const { key, node, ...field } of fields) {
        if ("default" in field) made[key] = copy(field.default);
        else if (node.kind === "list" && node.min) made[key] = Array.from({ length: node.min }, () => this.blank(node.item, seed));
        else if (seed !== undefined && ["integer", "number"].includes(node.kind)) made[key] = seed;
      }
      return made;
    }

    blankComponent(node, type) {
      return { type, ...this.blankFields(this.spec.components[node.component]?.[type]?.fields ?? []) };
    }

    // -- drawing ---------------------------------------------------------------------------------------------------
    render() {
      const active = this.root.contains(document.activeElement) ? document.activeElement : null;
      const at = active && { key: active.dataset.key, text: active.value, from: active.selectionStart, to: active.selectionEnd, typed: active.matches("input[type=text], textarea") };
      const scroll = window.scrollY;
      this.places.clear();
      const root = this.spec.root;
      const leaves = root.fields.filter((f) => f.basic && !this.isSection(f.node));
      const sections = root.fields.filter((f) => f.basic && this.isSection(f.node));
      const rest = root.fields.filter((f) => !f.basic);
      rl2f.fill(this.root,
        el("div", { class: "rl-card rf-rows" },
          leaves.length ? el("section", { class: "rf-row" }, el("div", { class: "rf-title" }, el("h3", {}, "run")), el("div", { class: "rf-grid" }, leaves.map((f) => this.field(f, [f.key])))) : null,
          sections.map((f) => this.section(f, [f.key])), this.strangers(root.fields, this.data, [])),
        rest.length ? el("div", { class: "rl-card rf-rows rf-rest" }, this.fold("*", `all other settings: ${rest.map((f) => f.label).join(", ")}`, this.changedIn(rest, this.data),
          rest.map((f) => (this.isSection(f.node) ? this.section(f, [f.key]) : el("section", { class: "rf-row" }, el("div", { class: "rf-title" }), el("div", { class: "rf-grid" }, this.field(f, [f.key]))))))) : null);
      this.showErrors();
      if (at?.key) {
        const again = this.root.querySelector(`[data-key="${CSS.escape(at.key)}"]`);
        if (again) {
          if (at.typed && again.matches("input[type=text], textarea")) { again.value = at.text; again.focus({ preventScroll: true }); try { again.setSelectionRange(at.from, at.to); } catch { /* a field without caret */ } }
          else again.focus({ preventScroll: true });
        }
      }
      if (Math.abs(window.scrollY - scroll) > 1) window.scrollTo({ top: scroll, behavior: "instant" });
    }

    isSection(node) {
      return ["object", "component", "map"].includes(node.kind) || (node.kind === "list" && ["object", "component"].includes(node.item.kind));
    }

    /** A foldable part that remembers whether it is open. `changes` of its settings differ from their defaults. */
    fold(key, title, changes, body) {
      const node = el("details", { class: "rf-fold", open: this.open.get(key) ?? false, ontoggle: (event) => this.open.set(key, event.target.open) },
        el("summary", {}, el("span", {}, title), changes ? el("span", { class: "rl-chip" }, `${changes} changed`) : null), body);
      node.dataset.fold = key;
      return node;
    }

    changedIn(fields, value) {
      return fields.filter((f) => "default" in f && !same(value?.[f.key], f.default)).length;
    }

    /** A nested config, a component or a list of them, as a row with its name at the left. */
    section(field, path) {
      const { node } = field, value = this.get(path);
      const error = el("p", { class: "rf-error", role: "alert" });
      const head = el("div", { class: "rf-title" }, el("h3", {}, field.label), el("p", { class: "rf-help" }, words(field.help)), error);
      const row = el("section", { class: "rf-row", dataset: { path: dotted(path) } }, head, el("div", { class: "rf-body" }, this.inside(node, path, value)));
      if (node.kind === "list") row.classList.add("rf-tall");
      this.places.set(dotted(path), { row, error });
      return row;
    }

    /** The controls of anything that is more than one field. */
    inside(node, path, value) {
      if (node.nullable) {
        const given = value !== null && value !== undefined;
        const box = el("label", { class: "rf-check" }, el("input", { type: "checkbox", checked: given, dataset: { key: `${dotted(path)}?` }, onchange: (e) => this.set(path, e.target.checked ? this.blank({ ...node, nullable: false }) : null, true) }), "given");
        return given ? [box, this.inside({ ...node, nullable: false }, path, value)] : box;
      }
      if (node.kind === "component") return this.component(node, path, value);
      if (node.kind === "object") return isMap(value) ? this.group(node.fields, path, value, true) : this.raw(path, value);
      if (node.kind === "map") return this.map(node, path, value);
      if (node.kind === "list") return this.list(node, path, value);
      return this.control(node, path, value, {});
    }

    /** Fields in a grid, the basic ones first and the others folded; where none is basic, all are shown. */
    group(fields, path, value, nested = false) {
      const first = fields.some((f) => f.basic) ? fields.filter((f) => f.basic) : fields;
      const more = fields.filter((f) => !first.includes(f));
      const draw = (list) => {
        const plain = list.filter((f) => !this.isSection(f.node)), big = list.filter((f) => this.isSection(f.node));
        return [plain.length ? el("div", { class: "rf-grid" }, plain.map((f) => this.field(f, [...path, f.key]))) : null, big.map((f) => this.inner(f, [...path, f.key]))];
      };
      return [draw(first), more.length ? this.fold(dotted(path), `${more.length} more`, this.changedIn(more, value), draw(more)) : null, this.strangers(fields, value, path, nested)];
    }

    /** A section inside of a section: its name above it. */
    inner(field, path) {
      const error = el("p", { class: "rf-error", role: "alert" });
      const row = el("div", { class: "rf-inner", dataset: { path: dotted(path) } },
        el("div", { class: "rf-label" }, el("span", {}, field.label), el("span", { class: "rf-help" }, words(field.help))), error, this.inside(field.node, path, this.get(path)));
      this.places.set(dotted(path), { row, error });
      return row;
    }

    component(node, path, value) {
      if (typeof value === "string") value = { type: value };
      if (!isMap(value) && value !== undefined && value !== null) return this.raw(path, value);
      const options = this.spec.components[node.component] ?? {}, type = value?.type;
      const choose = (name) => {
        if (isMap(value) && typeof type === "string") this.memory.set(`${dotted(path)}:${type}`, copy(value));
        this.set(path, this.memory.get(`${dotted(path)}:${name}`) ?? this.blankComponent(node, name), true);
      };
      const names = node.types.includes(type) || type === undefined ? node.types : [type, ...node.types];
      const select = el("select", { class: "rf-type", "aria-label": `type of ${path.at(-1)}`, dataset: { key: dotted([...path, "type"]) }, onchange: (e) => choose(e.target.value) },
        type === undefined ? el("option", { value: "", selected: true, disabled: true }, "choose …") : null,
        names.map((name) => el("option", { value: name, selected: name === type }, node.types.includes(name) ? name : `${name} (unknown)`)));
      this.places.set(dotted([...path, "type"]), { row: select, error: null });
      const fields = options[type]?.fields;
      return [el("div", { class: "rf-typeline" }, select, options[type]?.help ? el("span", { class: "rf-help" }, words(options[type].help.split("\n")[0])) : null),
        fields ? this.group(fields, path, value) : null];
    }

    /** Keys that the schema does not know: kept, shown, and removed only by the person. */
    strangers(fields, value, path) {
      if (!isMap(value)) return null;
      const known = new Set([...fields.map((f) => f.key), "type", "kind"]);
      const odd = Object.keys(value).filter((key) => !known.has(key));
      return odd.map((key) => {
        const at = [...path, key], error = el("p", { class: "rf-error", role: "alert" });
        const row = el("div", { class: "rf-stranger", dataset: { path: dotted(at) } }, el("code", {}, `${key}: ${JSON.stringify(value[key])}`),
          el("button", { type: "button", class: "rl-button rl-small", onclick: () => this.remove(at) }, "Remove"), error);
        this.places.set(dotted(at), { row, error });
        return row;
      });
    }

    // -- lists and maps --------------------------------------------------------------------------------------------
    list(node, path, value = []) {
      if (!Array.isArray(value)) return this.raw(path, value);
      const label = String(path.at(-1)).replace(/s$/, "").replaceAll("_", " ");
      const put = (items) => {
        for (const key of [...this.memory.keys()]) if (key.startsWith(`${dotted(path)}.`)) this.memory.delete(key); // positions have changed
        this.set(path, items, true);
      };
      const move = (i, by) => { const items = [...value]; items.splice(i + by, 0, ...items.splice(i, 1)); this.swapOpen(path, i, i + by); put(items); };
      const tool = (sign, text, run, off = false) => el("button", { type: "button", class: "rl-icon", title: text, "aria-label": text, disabled: off, onclick: run }, sign);
      const tools = (i) => el("span", { class: "rf-tools" },
        tool("↑", `move ${label} ${i + 1} up`, () => move(i, -1), i === 0), tool("↓", `move ${label} ${i + 1} down`, () => move(i, 1), i === value.length - 1),
        tool(TWO(), `duplicate ${label} ${i + 1}`, () => put([...value.slice(0, i + 1), this.renamed(copy(value[i]), value), ...value.slice(i + 1)])),
        tool("×", `remove ${label} ${i + 1}`, () => put(value.filter((_, k) => k !== i)), value.length <= (node.min ?? 0)));
      const items = value.map((item, i) => {
        const at = [...path, i], error = el("p", { class: "rf-error", role: "alert" });
        const big = ["object", "component"].includes(node.item.kind);
        const short = isMap(item) && node.item.kind === "object" && node.item.fields.length <= 3 && node.item.fields.every((f) => SHORT.has(f.node.kind));
        const row = short
          ? el("div", { class: "rf-item rf-line", dataset: { path: dotted(at) } }, el("div", { class: "rf-grid" }, node.item.fields.map((f) => this.field(f, [...at, f.key]))), tools(i), this.strangers(node.item.fields, item, at), error)
          : big
          ? el("div", { class: "rf-item", dataset: { path: dotted(at) } }, node.item.kind === "object" ? el("div", { class: "rf-itemhead" }, el("b", {}, `${i + 1} · ${item?.name ?? label}`), this.gist(node.item, item), tools(i)) : tools(i), error, el("div", { class: "rf-itembody" }, this.inside(node.item, at, item)))
          : el("div", { class: "rf-entry", dataset: { path: dotted(at) } }, this.control(node.item, at, item, { label: `${label} ${i + 1}` }), tools(i), error);
        this.places.set(dotted(at), { row, error });
        return row;
      });
      const full = node.max !== null && node.max !== undefined && value.length >= node.max;
      return el("div", { class: "rf-list" }, items, value.length ? null : el("p", { class: "rl-muted" }, `no ${label} yet`),
        el("button", { type: "button", class: "rl-button rl-small", disabled: full, dataset: { key: `${dotted(path)}+` }, onclick: () => put([...value, this.fresh(node.item, value)]) }, `+ ${label}`));
    }

    /** A new item: defaults, and what has none from the item before. */
    fresh(node, items) {
      const made = this.blank(node), last = items.at(-1);
      if (node.kind !== "object") return made;
      for (const field of node.fields) {
        if (field.key in made) continue;
        made[field.key] = isMap(last) && field.key in last ? copy(last[field.key]) : this.blank(field.node);
      }
      const kept = Object.fromEntries(node.fields.filter((f) => f.key in made).map((f) => [f.key, made[f.key]]));
      return this.renamed(kept, items);
    }

    /** An item with a name that no other has. */
    renamed(item, items) {
      if (!isMap(item) || typeof item.name !== "string") return item;
      const taken = new Set(items.map((other) => other?.name)), stem = item.name.replace(/-\d+$/, "") || "item";
      for (let i = 2; taken.has(item.name) || !item.name; i++) item.name = `${stem}-${i}`;
      return item;
    }

    swapOpen(path, i, k) {
      const [a, b] = [dotted([...path, i]), dotted([...path, k])];
      const moved = new Map();
      for (const [key, open] of this.open) {
        const of = (from, to) => (key === from || key.startsWith(`${from}.`) ? to + key.slice(from.length) : null);
        moved.set(of(a, b) ?? of(b, a) ?? key, open);
      }
      this.open = moved;
    }

    /** What an item is, at a glance: the types of its components. */
    gist(node, item) {
      const types = node.fields.filter((f) => f.node.kind === "component").map((f) => item?.[f.key]?.type ?? item?.[f.key]).filter((t) => typeof t === "string");
      return types.map((type) => el("span", { class: "rl-chip" }, type));
    }

    map(node, path, value = {}) {
      if (!isMap(value)) return this.raw(path, value);
      const put = (entries) => this.set(path, Object.fromEntries(entries), true);
      const entries = Object.entries(value);
      const rows = entries.map(([name, held], i) => {
        const at = [...path, name], error = el("p", { class: "rf-error", role: "alert" });
        const row = el("div", { class: "rf-entry", dataset: { path: dotted(at) } },
          el("input", { type: "text", value: name, "aria-label": "name", dataset: { key: `${dotted(path)}#${i}` }, onchange: (e) => put(entries.map(([n, v], k) => (k === i ? [e.target.value in value ? n : e.target.value, v] : [n, v]))) }),
          this.control(node.value, at, held, { label: name }),
          el("button", { type: "button", class: "rl-icon", "aria-label": `remove ${name}`, title: `remove ${name}`, disabled: entries.length <= (node.min ?? 0), onclick: () => put(entries.filter((_, k) => k !== i)) }, "×"), error);
        this.places.set(dotted(at), { row, error });
        return row;
      });
      const fresh = () => { let i = entries.length + 1; while (`name-${i}` in value) i++; return [`name-${i}`, node.value.nullable ? null : this.blank(node.value)]; };
      return el("div", { class: "rf-list" }, rows, el("button", { type: "button", class: "rl-button rl-small", dataset: { key: `${dotted(path)}+` }, onclick: () => put([...entries, fresh()]) }, "+ entry"));
    }

    /** A value whose shape is not the one of the form: as JSON, to be mended there or in the YAML. */
    raw(path, value) {
      const long = value !== null && typeof value === "object";
      return el(long ? "textarea" : "input", { class: "rf-raw", ...(long ? { rows: 2 } : { type: "text" }), spellcheck: "false", autocomplete: "off", value: value === undefined ? "" : JSON.stringify(value), "aria-label": dotted(path), dataset: { key: dotted(path) },
        onchange: (e) => { let held = e.target.value; try { held = JSON.parse(held); } catch { /* kept as text, the server says what is wrong */ } this.set(path, held, true); } });
    }

    // -- one field -------------------------------------------------------------------------------------------------
    field(field, path) {
      const { node } = field, value = this.get(path), id = `rf-${dotted(path).replaceAll(/[^\w-]/g, "-")}`;
      const error = el("p", { class: "rf-error", id: `${id}-error`, role: "alert" });
      const wide = node.kind === "union" || node.kind === "any" || (node.kind === "list" && !node.choices) || (node.kind === "string" && (node.maxLength > 400 || String(field.default ?? "").length > 60));
      const reset = "default" in field
        ? el("button", { type: "button", class: "rf-reset", title: `back to ${JSON.stringify(field.default)}`, "aria-label": `${field.label}: back to the default`, hidden: same(value, field.default), onclick: () => this.set(path, copy(field.default), true) }, "↺") : null;
      const row = el("div", { class: `rf-field${wide ? " rf-wide" : ""}`, dataset: { path: dotted(path) } },
        el("div", { class: "rf-label" }, el("label", { for: id }, field.label), el("span", { class: "rf-bounds" }, bounds(node)), reset),
        this.control(node, path, value, { id, label: field.label }),
        field.help ? el("p", { class: "rf-help", id: `${id}-help` }, words(field.help)) : null, error);
      this.places.set(dotted(path), { row, error, reset, field });
      return row;
    }

    /** Show whether a value differs from its default. */
    mark(path) {
      const place = this.places.get(dotted(path));
      if (place?.reset) place.reset.hidden = same(this.get(path), place.field.default);
    }

    control(node, path, value, { id = null, label = "" }) {
      const key = dotted(path), common = { id, "aria-label": id ? null : label, "aria-describedby": id ? `${id}-help ${id}-error` : null, dataset: { key } };
      if (node.known === "endpoints") return this.address(path, value, common);
      if (node.known) return this.chosen(node, path, value, common);
      switch (node.kind) {
        case "boolean":
          if (!node.nullable) return el("label", { class: "rf-check" }, el("input", { ...common, type: "checkbox", checked: value === true, onchange: (e) => this.set(path, e.target.checked) }), value === true || value === false || value === undefined ? "on" : `on (now ${JSON.stringify(value)})`);
          return this.select(common, path, value, [null, true, false]);
        case "choice": return this.select(common, path, value, node.nullable ? [null, ...node.values] : node.values);
        case "integer": case "number": return this.number(node, common, path, value);
        case "string": return this.text(node, common, path, value);
        case "list": return node.choices && Array.isArray(value) && new Set(value).size === value.length ? this.checks(node, path, value, label) : this.inside(node, path, value);
        case "tuple": return Array.isArray(value) && value.length === node.items.length ? el("div", { class: "rf-pair" }, node.items.map((item, i) => this.control(item, [...path, i], value[i], { label: `${label} ${i + 1}` }))) : this.raw(path, value);
        case "union": return this.union(node, path, value, common);
        case "any": return this.raw(path, value);
        default: return this.inside(node, path, value);
      }
    }

    select(common, path, value, values) {
      const all = values.some((v) => same(v, value)) ? values : [value, ...values];
      const show = (v) => (v === null ? "none" : v === undefined ? "choose …" : typeof v === "string" ? v : JSON.stringify(v));
      return el("select", { ...common, onchange: (e) => this.set(path, all[e.target.selectedIndex]) },
        all.map((v) => el("option", { value: show(v), selected: same(v, value) }, values.some((k) => same(k, v)) || v === undefined ? show(v) : `${show(v)} (not allowed)`)));
    }

    number(node, common, path, value) {
      const read = (text) => (text.trim() === "" && node.nullable ? null : parseNumber(text));
      const step = (event) => {
        const by = { ArrowUp: 1, ArrowDown: -1 }[event.key], now = parseNumber(event.target.value);
        if (!by || node.kind !== "integer" || typeof now !== "number") return;
        event.preventDefault();
        const next = Math.min(node.maximum ?? Infinity, Math.max(node.minimum ?? -Infinity, now + by));
        event.target.value = String(next);
        this.set(path, next);
      };
      return el("input", { ...common, type: "text", class: "rl-num", inputmode: node.kind === "integer" ? "numeric" : "decimal", autocomplete: "off", placeholder: node.nullable ? "none" : "", value: value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value), onkeydown: step, oninput: (e) => this.set(path, read(e.target.value)) });
    }

    text(node, common, path, value) {
      const shown = value === null || value === undefined ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
      const props = { ...common, spellcheck: "false", autocomplete: "off", placeholder: node.nullable ? "none" : "", value: shown, oninput: (e) => this.set(path, e.target.value === "" && node.nullable ? null : e.target.value) };
      return node.maxLength > 400 || shown.includes("\n") || shown.length > 60 ? el("textarea", { ...props, rows: Math.min(8, shown.split("\n").length + 1) }) : el("input", { ...props, type: "text" });
    }

    /** Several of a few words; the order in which they stand is kept, a new one comes last. */
    checks(node, path, value, label) {
      const odd = value.filter((v) => !node.choices.includes(v));
      return el("div", { class: "rf-checks", role: "group", "aria-label": label }, [...node.choices, ...odd].map((choice) =>
        el("label", { class: "rf-check" }, el("input", { type: "checkbox", checked: value.includes(choice), dataset: { key: `${dotted(path)}=${choice}` }, onchange: (e) => {
          const now = this.get(path);
          this.set(path, e.target.checked ? [...now, choice] : now.filter((v) => v !== choice), odd.includes(choice));
        } }), odd.includes(choice) ? `${choice} (not allowed)` : String(choice))));
    }

    union(node, path, value, common) {
      const fits = (o) => ({ list: Array.isArray(value), tuple: Array.isArray(value), object: isMap(value), component: isMap(value), map: isMap(value), boolean: typeof value === "boolean", integer: Number.isInteger(value), number: typeof value === "number", string: typeof value === "string", choice: o.values?.some((v) => same(v, value)) })[o.kind] ?? false;
      const name = (o) => (o.kind === "choice" ? o.values.join(" or ") : { list: "a list", tuple: "a list", string: "text", integer: "a whole number", number: "a number", object: o.name ? `a ${o.name}` : "settings", map: "names and values", boolean: "on or off", any: "anything" }[o.kind] ?? o.kind);
      const options = node.nullable ? [{ kind: "none" }, ...node.options] : node.options;
      let at = value === null && node.nullable ? 0 : options.findIndex((o) => o.kind === "choice" && fits(o));
      if (at < 0) at = options.findIndex(fits);
      if (at < 0) return this.raw(path, value);
      const picked = options[at], tall = picked.kind === "object" || picked.kind === "component";
      const first = (next) => {
        const usual = this.places.get(dotted(path))?.field?.default; // a plain value is better begun with the default than with the least
        const plain = !["object", "component", "list", "tuple", "map", "none"].includes(next.kind);
        return next.kind === "none" ? null : plain && usual !== null && typeof usual !== "object" && usual !== undefined ? copy(usual) : this.blank(next, typeof value === "number" ? value : undefined);
      };
      const shown = picked.kind === "none" || (picked.kind === "choice" && picked.values.length === 1) ? null : this.control(picked, path, value, { label: common["aria-label"] ?? "" });
      return el("div", { class: `rf-union${tall ? " rf-union-tall" : ""}` }, el("select", { ...common, dataset: { key: `${dotted(path)}|` }, onchange: (e) => {
        const next = options[e.target.selectedIndex];
        this.memory.set(`${dotted(path)}|${at}`, copy(value));
        this.set(path, this.memory.get(`${dotted(path)}|${e.target.selectedIndex}`) ?? first(next), true);
      } }, options.map((o, i) => el("option", { selected: i === at }, o.kind === "none" ? "none" : name(o)))), tall ? el("div", { class: "rf-inner" }, shown) : shown);
    }

    /** An address, with those that the server lists as suggestions; it says itself which it refuses. */
    address(path, value, common) {
      const list = el("datalist", { id: `rf-endpoints-${++this.serial}` }, (this.known.endpoints ?? []).map((c) => el("option", { value: c.value })));
      return [el("input", { ...common, type: "text", value: value ?? "", list: list.id, spellcheck: "false", autocomplete: "off", oninput: (e) => this.set(path, e.target.value) }), list];
    }

    /** One of the things that the server knows: models (or a hub id), checkpoints of runs. */
    chosen(node, path, value, common) {
      const made = node.known === "data" ? (this.data.stages ?? []).filter((s) => (s.method?.type ?? s.method) === "distill").map((s) => ({ value: s.name, label: `stage ${s.name}` })) : [];
      const choices = [...made, ...(this.known[node.known] ?? [])], hub = node.known === "models";
      const free = hub && value !== null && value !== undefined && (this.memory.get(`${dotted(path)}@hub`) || !choices.some((c) => c.value === value));
      const OTHER = "\u0000other";
      const entries = [...(node.nullable ? [{ value: "", label: node.known === "checkpoints" ? "none" : "none" }] : []), ...choices, ...(hub ? [{ value: OTHER, label: "another from the hub …" }] : [])];
      if (!hub && value && !choices.some((c) => c.value === value)) entries.unshift({ value, label: `${value} (not in the list)` });
      if (!hub && value === undefined) entries.unshift({ value: "", label: "choose …" });
      const now = free ? OTHER : value ?? "";
      const select = el("select", { ...common, onchange: (e) => {
        const next = e.target.value;
        this.memory.set(`${dotted(path)}@hub`, next === OTHER);
        this.set(path, next === OTHER ? "" : next === "" && node.nullable ? null : next, true);
      } }, entries.map((c) => el("option", { value: c.value, selected: c.value === now, title: c.note ?? null }, c.note && !hub ? `${c.label} · ${c.note}` : c.label)));
      const note = choices.find((c) => c.value === value)?.note;
      if (!free) return hub && note ? [select, el("p", { class: "rf-note" }, note)] : select;
      return el("div", { class: "rf-union" }, select, el("input", { type: "text", value, placeholder: "org/name", spellcheck: "false", autocomplete: "off", "aria-label": "hub id", dataset: { key: `${dotted(path)}@` }, oninput: (e) => this.set(path, e.target.value) }));
    }

    // -- errors ----------------------------------------------------------------------------------------------------
    setErrors(errors) {
      this.errors = errors;
      this.showErrors();
    }

    showErrors() {
      for (const { row, error } of this.places.values()) { row.classList.remove("rf-bad"); error?.replaceChildren(); }
      this.root.querySelectorAll("[aria-invalid]").forEach((n) => n.removeAttribute("aria-invalid"));
      for (const item of this.errors) {
        const place = this.placeOf(item.path);
        if (!place) continue;
        place.row.classList.add("rf-bad");
        const exact = place.row.dataset.path === dotted(item.path);
        place.error.append(el("span", {}, exact ? item.message : `${item.dotted}: ${item.message}`));
        place.row.querySelector(":scope > :is(input, select, textarea), :scope > .rf-union > *")?.setAttribute("aria-invalid", "true");
        for (let up = place.row.closest("details"); up; up = up.parentElement.closest("details")) { up.open = true; this.open.set(up.dataset.fold, true); }
      }
    }

    /** Where an error of a path is shown: at its own place, or the nearest above it that has one. */
    placeOf(path) {
      for (let end = path.length; end > 0; end--) {
        const place = this.places.get(dotted(path.slice(0, end)));
        if (place?.error) return place;
      }
      return null;
    }

    /** Bring a field into view and put the caret into it. */
    focus(path) {
      const place = this.placeOf(path);
      if (!place) return;
      for (let up = place.row.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
      const control = place.row.querySelector("input, select, textarea") ?? place.row.querySelector("button") ?? place.row;
      place.row.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "instant" : "smooth" });
      control.focus({ preventScroll: true });
    }
  }

  Form.words = words;
  rl2f.Form = Form;
})();
