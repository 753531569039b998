/* The newest value of a component.
 *
 * Gradio's client applies an answer when the request of its event has returned. On a busy machine the answer of an
 * earlier event can therefore arrive after that of a later one; `Component.postprocess` numbers them. */
export default function values(props, watch) {
  let number = 0;
  let text = "null";
  const take = () => {
    const [, made, json] = /^(\d+) (.*)$/s.exec(props.value) ?? [];
    if (Number(made) > number) [number, text] = [Number(made), json];
  };
  take();
  return {
    get: () => JSON.parse(text),
    /** Call `draw` after each value that is newer than the last one and differs from it. */
    watch: (draw) => {
      let drawn = text;
      watch("value", () => {
        take();
        if (text === drawn) return;
        drawn = text;
        draw();
      });
    },
  };
}
