// What the detector's pictures share: tokens and sinks, the scale of mass, and a token in words.

const tokens = data.tokens;
const count = tokens.shown.length;
const sinks = new Map(data.sinks.map((sink) => [sink.index, sink]));
const steps = 8; // the darkest of the nine steps in page.css

// Edges of a scale by ratio, between the least tenth and the largest: as fine as the steps allow.
function ladder(values) {
  const seen = values.filter((x) => x > 0).sort((a, b) => a - b);
  if (!seen.length) return [];
  const [low, high] = [seen[Math.floor(seen.length / 10)], seen[seen.length - 1]];
  const between = (ones) => {
    const edges = [];
    for (let decade = -9; decade <= 0; decade++) {
      for (const one of ones) edges.push(+`${one}e${decade}`);
    }
    return edges.filter((edge) => edge > low && edge <= high);
  };
  const fitting = [[1, 1.5, 2, 3, 5, 7], [1, 2, 5]].map(between).find((edges) => edges.length <= steps + 1);
  return (fitting ?? between([1, 3])).slice(-steps);
}

function level(x, edges) {
  if (!known(x)) return "na";
  const over = edges.filter((edge) => x >= edge).length;
  return "l" + (edges.length ? Math.round((over * steps) / edges.length) : 0);
}

function legend(list, edges, { missing, sink, listed }) {
  const add = (className, swatch, text) => {
    const item = element("li", className);
    item.append(element("i", swatch), text);
    list.append(item);
  };
  const top = edges.length ? edges[0] : null;
  add("", level(0, edges), top === null ? "0\u00a0%" : "less");
  for (const edge of edges) add("", level(edge, edges), percent(edge));
  if (missing) add("apart", "na", unknown);
  if (sink) add("apart sink", "", "a sink");
  if (listed) add("apart listed", "", "a marker, no outlier");
}

function describe(index) {
  const parts = [
    `mass ${percent(tokens.mass[index])}`,
    `largest head ${percent(tokens.most[index])}`,
    `${grouped(tokens.heads_over[index])} of ${grouped(data.heads * data.layers.length)} heads over ε`,
    `z ${number(tokens.z[index])}`,
    `entropy ${number(tokens.entropy[index])}`,
    `margin ${number(tokens.margin[index])}`,
  ];
  const name = element("b", "", `Token ${grouped(index)}`);
  const text = element("code");
  text.append(element("bdi", "", tokens.shown[index]));
  const sink = sinks.get(index);
  const kind = sink ? ` ${sink.kind} ${sink.outlier ? "sink" : "token, no outlier"},` : "";
  const all = known(tokens.mass[index]) ? parts.join(", ") : `mass ${unknown}, ${parts.slice(4).join(", ")}`;
  return [name, " ", text, ` id ${tokens.ids[index]},${kind} ${all}`];
}
