// The curves: ε, and mass, z, entropy, varentropy and margin along the text. They are drawn at the size they are seen in,
// and again when that changes. A long text is thinned to the least and the largest of each column of pixels, so that no
// peak is lost. Last of the scripts: it starts them all.

const paper = 680; // pixels: what a printed page is wide, and a figure beside another
const paperBeside = 250;
const space = document.querySelector("svg").namespaceURI;

function shape(name, attributes, text) {
  const made = document.createElementNS(space, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const byLog = { to: Math.log10, ticks: (low, high) => decades(low, high) };
const asIs = { to: (x) => x, ticks: (low, high) => round(low, high) };
// Even near zero and by ratio far from it: an ordinary token and a huge sink are both read.
const byAsinh = {
  to: Math.asinh,
  ticks: (low, high) => [-100, -30, -10, -3, 0, 3, 10, 30, 100, 300, 1000].filter((x) => x >= low && x <= high),
};

function decades(low, high) {
  const all = [];
  for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) all.push(+`1e${power}`);
  return all;
}

function round(low, high, most = 5) {
  const rough = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((one) => one * size >= rough * 0.999);
  const all = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step / 1e6; x += step) all.push(+x.toPrecision(6));
  return all;
}

// Axes around an empty picture, and where a value lies in it.
function frame(svg, { height, x, y, left = 58, right = 14 }) {
  const width = svg.dataset.width ? +svg.dataset.width : Math.max(240, Math.round(svg.parentElement.clientWidth));
  const [top, bottom] = [8, 24];
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const place = ({ scale, low, high }, from, to) => {
    const [a, b] = [scale.to(low), scale.to(high)];
    return (value) => from + ((scale.to(Math.max(low, Math.min(high, value))) - a) / (b - a || 1)) * (to - from);
  };
  const across = place(x, left, width - right);
  const up = place(y, height - bottom, top);
  for (const tick of y.scale.ticks(y.low, y.high)) {
    svg.append(shape("path", { class: "grid", d: `M${left} ${up(tick)}H${width - right}` }));
    svg.append(shape("text", { x: left - 8, y: up(tick) + 4, "text-anchor": "end" }, y.says(tick)));
  }
  const room = Math.max(2, Math.floor((width - left) / 80));
  const ticks = x.scale === asIs ? round(x.low, x.high, room) : x.scale.ticks(x.low, x.high);
  for (const tick of ticks) {
    const anchor = across(tick) > width - right - 16 ? "end" : "middle";
    svg.append(shape("text", { x: anchor === "end" ? width : across(tick), y: height - 6, "text-anchor": anchor }, x.says(tick)));
  }
  return { across, up, left, right: width - right, top, bottom: height - bottom };
}

// Indices to draw of a series: all of a short one; of a long one the least and the largest in each column.
function thinned(values, columns) {
  if (values.length <= 2 * columns) return values.map((_, index) => index);
  const kept = [];
  for (let column = 0; column < columns; column++) {
    const [start, end] = [Math.floor((column * values.length) / columns), Math.floor(((column + 1) * values.length) / columns)];
    let [least, most, gap] = [-1, -1, -1];
    for (let index = start; index < end; index++) {
      if (!known(values[index])) gap = index;
      else {
        if (least < 0 || values[index] < values[least]) least = index;
        if (most < 0 || values[index] > values[most]) most = index;
      }
    }
    kept.push(...[...new Set([least, most, gap])].filter((index) => index >= 0).sort((a, b) => a - b));
  }
  return kept;
}

// A path with a break wherever nothing was measured; a lone point is a dot.
function path(indices, values, across, up) {
  let said = "";
  let open = false;
  for (const index of indices) {
    if (!known(values[index])) open = false;
    else {
      const point = `${across(index).toFixed(1)} ${up(values[index]).toFixed(1)}`;
      said += open ? `L${point}` : `M${point}h0`;
      open = true;
    }
  }
  return said;
}

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
const drawAll = () => draws.forEach((draw) => draw());
drawAll();
if (count) choose(data.sinks.length ? data.sinks[0].index : 0);

let seenWidth = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === seenWidth) return;
  seenWidth = document.body.clientWidth;
  drawAll();
}).observe(document.body);
const forPaper = (printing) => {
  for (const svg of document.querySelectorAll("figure > svg")) {
    if (printing) svg.dataset.width = svg.closest(".beside") ? paperBeside : paper;
    else delete svg.dataset.width;
  }
  drawAll();
};
addEventListener("beforeprint", () => forPaper(true));
addEventListener("afterprint", () => forPaper(false));
