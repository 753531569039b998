/* Writes entries of a dictionary in localStorage. */
export default function mount({ props, values }) {
  values.watch(() => {
    try {
      const all = JSON.parse(localStorage.getItem(props.name) ?? "{}") ?? {};
      for (const [key, entry] of Object.entries(values.get() ?? {})) {
        delete all[key];
        if (entry !== null) all[key] = entry;
      }
      for (const old of Object.keys(all).slice(0, -props.limit)) delete all[old];
      localStorage.setItem(props.name, JSON.stringify(all));
    } catch { /* a browser without storage keeps nothing */ }
  });
}
