// The curves: ε, and mass, z, entropy, varentropy and margin along the text. A long text is thinned to the least and the
// largest of each column of pixels, so that no peak is lost. Last of the scripts: it starts them all.

function along(name, { height, scale = asIs, says = number, cut = null, marks = [], floor = null }) {
  const figure = document.getElementById(name);
  const svg = figure.querySelector("svg");
  const values = tokens[name];
  const seen = values.filter((x) => known(x) && (scale !== byLog || x > 0));
  if (!seen.length) {
    svg.replaceWith(element("p", "empty", "Not measured."));
    return () => {};
  }
  let [low, high] = [Infinity, -Infinity];
  for (const x of cut === null ? seen : [...seen, cut * 1.3]) [low, high] = [Math.min(low, x), Math.max(high, x)];
  if (floor !== null) low = Math.min(low, floor);
  const peak = values.indexOf(seen.reduce((a, b) => Math.max(a, b)));
  const missing = values.length - values.filter(known).length;
  const without = missing ? `, ${grouped(missing)} not measured` : "";
  const heading = figure.querySelector("h3").textContent;
  svg.setAttribute("aria-label", `${heading} against position: highest ${says(values[peak])} at token ${peak}${without}`);

  let frames;
  const cursor = shape("path", { class: "cursor", d: "" });
  const draw = () => {
    frames = frame(svg, {
      height,
      x: { scale: asIs, low: 0, high: Math.max(1, count - 1), says: grouped },
      y: { scale, low, high, says },
    });
    const { across, up, left, right } = frames;
    const indices = thinned(values, Math.floor(right - left));
    svg.append(shape("path", { class: "line", d: path(indices, values, across, up) }));
    if (cut !== null) {
      svg.append(shape("path", { class: "cut", d: `M${left} ${up(cut)}H${right}` }));
      svg.append(shape("text", { class: "name", x: right, y: up(cut) - 6, "text-anchor": "end" }, `cut ${number(cut)}`));
    }
    const named = [];
    for (const index of marks) {
      if (!known(values[index])) continue;
      const [x, y] = [across(index), up(values[index])];
      svg.append(shape("circle", { class: "outlier", cx: x, cy: y, r: 4 }));
      if (named.some(([a, b]) => Math.abs(a - x) < 44 && Math.abs(b - y) < 14)) continue;
      named.push([x, y]);
      const end = x > right - 50;
      svg.append(shape("text", { class: "name", x: end ? x - 9 : x + 9, y: y + 4, "text-anchor": end ? "end" : "start" }, grouped(index)));
    }
    svg.append(cursor);
  };
  watchers.push((index) => {
    const { across, top, bottom } = frames;
    cursor.setAttribute("d", `M${across(index)} ${top}V${bottom}`);
  });
  const pointed = (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const share = (x - frames.left) / (frames.right - frames.left);
    return nearPeak(values, share, frames.right - frames.left);
  };
  svg.addEventListener("pointermove", (event) => choose(pointed(event)));
  svg.addEventListener("click", (event) => reveal(pointed(event)));
  return draw;
}

// Of the tokens under one pointer, that with the largest value: it is the one that is seen.
function nearPeak(values, share, width) {
  const middle = Math.round(share * (count - 1));
  const reach = Math.floor((2 * count) / width);
  let best = Math.max(0, Math.min(count - 1, middle));
  for (let index = Math.max(0, middle - reach); index <= Math.min(count - 1, middle + reach); index++) {
    if (known(values[index]) && (!known(values[best]) || values[index] > values[best])) best = index;
  }
  return best;
}

function epsilonCurve() {
  const figure = document.getElementById("epsilon");
  const [svg, readout] = [figure.querySelector("svg"), figure.querySelector(".readout")];
  const points = data.curve.filter(([x, y]) => known(x) && known(y)).sort((a, b) => a[0] - b[0]);
  if (points.length < 2) {
    svg.replaceWith(element("p", "empty", "Not measured."));
    return () => {};
  }
  const says = ([x, share]) => `At ε = ${number(x)}: ${percent(share)} of heads`;
  const chosen = known(data.epsilon) ? data.epsilon : null;
  const inside = chosen !== null && chosen >= points[0][0] && chosen <= points[points.length - 1][0];
  svg.setAttribute("aria-label", `Share of heads against ε, from ${says(points[0])} to ${says(points[points.length - 1])}`);
  let frames;
  const dot = shape("circle", { class: "dot", r: 4, cx: -10, cy: -10, visibility: "hidden" });
  const draw = () => {
    const [low, high] = [points[0][0], points[points.length - 1][0]];
    frames = frame(svg, {
      height: 232,
      left: 46,
      x: { scale: asIs, low, high, says: (x) => `ε = ${number(x)}` },
      y: { scale: asIs, low: 0, high: 1, says: percent },
    });
    const { across, up, top, bottom, right } = frames;
    if (inside) {
      const x = across(chosen);
      svg.append(shape("path", { class: "cut", d: `M${x} ${top}V${bottom}` }));
      const end = x > right - 60;
      svg.append(shape("text", { class: "name", x: end ? x - 6 : x + 6, y: top + 10, "text-anchor": end ? "end" : "start" }, `ε = ${number(chosen)}`));
    }
    const line = points.map(([x, y], index) => `${index ? "L" : "M"}${across(x).toFixed(1)} ${up(y).toFixed(1)}`);
    svg.append(shape("path", { class: "line curve", d: line.join("") }), dot);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const away = ([at]) => Math.abs(frames.across(at) - x);
    const near = points.reduce((a, b) => (away(b) < away(a) ? b : a));
    dot.setAttribute("cx", frames.across(near[0]));
    dot.setAttribute("cy", frames.up(near[1]));
    dot.removeAttribute("visibility");
    readout.textContent = says(near);
  });
  return draw;
}

for (const [name, rows] of [["heat", data.heat], ["learned", data.learned]]) {
  const figure = document.getElementById(name);
  if (figure) heatMap(figure, rows);
}
const reveal = tokenText();
const outliers = data.sinks.filter((sink) => sink.outlier).map((sink) => sink.index).slice(0, 500);
const draws = [
  epsilonCurve(),
  along("mass", { height: 220, scale: byLog, says: percent, marks: outliers }),
  along("z", { height: 170, scale: byAsinh, cut: data.cut, marks: outliers }),
  along("entropy", { height: 110, floor: 0 }),
  along("varentropy", { height: 110, floor: 0 }),
  along("margin", { height: 110, floor: 0 }),
];
const place = document.getElementById("about-place");
watchers.push((index) => place.replaceChildren(...describe(index)));
keepDrawn(draws);
if (count) choose(data.sinks.length ? data.sinks[0].index : 0);
