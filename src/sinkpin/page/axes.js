// What curves are drawn with: scales, axes around an empty picture, paths. Pictures are drawn at the size they are seen in,
// and again when that changes (`keepDrawn`).

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
const asIs = { to: (x) => x, ticks: (low, high, most) => round(low, high, most) };
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
  for (const tick of x.scale.ticks(x.low, x.high, room)) {
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

// Draws them all now, and again for another width, and for paper.
function keepDrawn(draws) {
  const drawAll = () => draws.forEach((draw) => draw());
  drawAll();
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
}
