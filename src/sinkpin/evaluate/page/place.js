// Loss and divergence against position: a line an arm, a point a block, a circle where an arm departs for good. Last but
// one of the scripts: it starts them.

const starts = data.ends.map((end, index) => (index ? data.ends[index - 1] + 1 : data.first));
const middles = data.ends.map((end, index) => (starts[index] + end) / 2);

function against(name) {
  const figure = document.getElementById(name);
  if (!figure) return () => {};
  const svg = figure.querySelector("svg");
  const there = arms.map((arm, index) => index).filter((index) => arms[index][name] && !arms[index].full);
  // Grey below colours, and what loses least on top.
  there.sort((a, b) => (arms[b].colour ?? 99) - (arms[a].colour ?? 99));
  const [low, high] = limits(there.flatMap((index) => arms[index][name]), 0.02);
  const scale = natsOf(low, high);
  svg.setAttribute("aria-label", `${figure.querySelector("h3").textContent} against position, ${there.length} arms; the table has their means`);
  let lines = new Map();
  let chosen = 0;
  const show = () => lines.forEach((line, index) => line.forEach((one) => one.classList.toggle("chosen", index === chosen)));
  const draw = () => {
    const frames = frame(svg, {
      height: 240,
      x: { scale: asIs, low: data.first, high: data.ends[data.ends.length - 1], says: grouped },
      y: { scale, low, high, says: name === "kl" ? number : nats },
    });
    const { across, up, left, right } = frames;
    svg.append(shape("path", { class: "nil", d: `M${left} ${up(0)}H${right}` }));
    lines = new Map();
    for (const index of there) {
      const arm = arms[index];
      const paint = arm.colour === null ? "other" : `c${arm.colour}`;
      const all = middles.map((_, block) => block);
      const line = shape("path", { class: `series ${paint}`, d: path(all, arm[name], (block) => across(middles[block]), up) });
      svg.append(line);
      const parts = [line];
      if (known(arm.departs)) {
        const block = Math.max(0, data.ends.findIndex((end) => arm.departs <= end));
        parts.push(shape("circle", { class: `departs ${paint}`, cx: across(arm.departs), cy: up(arm[name][block]), r: 4.5 }));
        if (arm.colour !== null) svg.append(parts[1]);
      }
      lines.set(index, parts);
    }
    show();
  };
  watchers.push((index) => {
    chosen = index;
    show();
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const scaled = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scaled, (event.clientY - box.top) * scaled];
    const width = svg.viewBox.baseVal.width;
    const block = Math.max(0, Math.min(middles.length - 1, Math.floor(((x - 58) / (width - 72)) * middles.length)));
    const [a, b] = [scale.to(low), scale.to(high)];
    const y_of = (value) => 216 - ((scale.to(value) - a) / (b - a || 1)) * 208;
    const away = (index) => Math.abs(y_of(arms[index][name][block]) - y);
    if (there.length) choose(there.reduce((best, index) => (away(index) < away(best) ? index : best)));
  });
  return draw;
}

function legendOfLines() {
  const list = document.querySelector(".lines");
  if (!list) return;
  const order = arms.map((_, index) => index).filter((index) => arms[index].loss && !arms[index].full && arms[index].colour !== null);
  order.sort((a, b) => arms[a].colour - arms[b].colour);
  const items = new Map();
  for (const index of order) {
    const item = element("li");
    const swatch = shape("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" });
    swatch.append(shape("path", { class: `series c${arms[index].colour}`, d: "M0 4H28" }));
    const button = element("button", "", arms[index].name);
    button.type = "button";
    button.dataset.arm = index;
    item.append(swatch, button);
    list.append(item);
    items.set(index, item);
  }
  const rest = arms.filter((arm) => arm.loss && !arm.full && arm.colour === null).length;
  if (rest) list.append(element("li", "hint", `grey: ${rest} more; choose one in the table`));
  watchers.push((index) => items.forEach((item, one) => item.classList.toggle("chosen", one === index)));
}

legendOfLines();
keepDrawn([lossAgainstBytes(), against("loss"), against("kl")]);
choose(data.opening);
