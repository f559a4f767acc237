// Loss against bytes: a point an arm, its interval upright, the front as a stair. Points are options of one list, one of
// them in the tab order.

function lossAgainstBytes() {
  const svg = document.querySelector("#bytes > svg");
  const byBoth = (key) => arms.map((_, index) => index).sort((a, b) => arms[a][key] - arms[b][key]);
  const orders = { bytes: byBoth("bytes"), delta: byBoth("delta") };
  const held = arms.map((arm) => arm.bytes);
  const [least, most] = [Math.min(...held), Math.max(...held)];
  const margin = data.margin ?? 0;
  const [low, high] = limits([margin, -margin, ...arms.flatMap((arm) => [arm.delta, ...(arm.ci95 ?? [])])], 0.02);
  const scale = natsOf(low, high);
  let at = 0;
  let points = [];
  let places = [];

  const draw = () => {
    const frames = frame(svg, {
      height: 320,
      x: { scale: byBytes, low: least / 1.25, high: most * 1.25, says: bytes },
      y: { scale, low, high, says: nats },
    });
    const { across, up, left, right, top, bottom } = frames;
    if (margin) {
      const [above, below] = [up(margin), up(-margin)];
      svg.prepend(shape("rect", { class: "margin", x: left, y: above, width: right - left, height: below - above }));
    }
    svg.append(shape("path", { class: "nil", d: `M${left} ${up(0)}H${right}` }));
    const best = orders.bytes.filter((index) => arms[index].front);
    const stair = best.map((index, step) => {
      const [x, y] = [across(arms[index].bytes).toFixed(1), up(arms[index].delta).toFixed(1)];
      return step ? `H${x}V${y}` : `M${x} ${y}`;
    });
    svg.append(shape("path", { class: "front", d: stair.join("") }));
    places = arms.map((arm) => [across(arm.bytes), up(arm.delta)]);
    points = arms.map((arm, index) => {
      const [x, y] = places[index];
      const point = shape("g", {
        class: `arm${arm.front ? " best" : ""}${arm.full ? " full" : ""}`,
        role: "option", tabindex: index === at ? 0 : -1, "aria-label": arm.says, "aria-selected": index === at,
      });
      if (arm.ci95) point.append(shape("path", { d: `M${x} ${up(arm.ci95[0])}V${up(arm.ci95[1])}` }));
      const hollow = !arm.pinned && !arm.full;
      point.append(
        hollow
          ? shape("rect", { class: "mark hollow", x: x - 4, y: y - 4, width: 8, height: 8 })
          : shape("circle", { class: "mark", cx: x, cy: y, r: 4 }),
        shape("circle", { class: "ring", cx: x, cy: y, r: 9 }),
      );
      point.classList.toggle("chosen", index === at);
      return point;
    });
    svg.append(...arms.map((_, index) => index).sort((a, b) => arms[a].front - arms[b].front).map((index) => points[index]));
    const full = arms.findIndex((arm) => arm.full);
    label([...new Set([full, data.opening, ...best])], { left, right, top, bottom });
  };

  // Names of the front and of the full cache, each where it covers neither a point nor another name; the rest are told when they are chosen.
  const label = (named, { left, right, top, bottom }) => {
    const taken = places.map(([x, y]) => [x - 6, y - 6, x + 6, y + 6]);
    for (const index of named) {
      const [x, y] = places[index];
      const long = arms[index].name.length * 6.6;
      const spots = [[x + 9, y + 4], [x - 9 - long, y + 4], [x - long / 2, y - 10], [x - long / 2, y + 20], [x + 9, y - 8], [x - 9 - long, y - 8]];
      const free = spots.find(([a, b]) => {
        const box = [a, b - 11, a + long, b + 3];
        if (box[0] < left || box[2] > right || box[1] < top || box[3] > bottom) return false;
        return taken.every((one) => box[2] < one[0] || box[0] > one[2] || box[3] < one[1] || box[1] > one[3]);
      });
      if (!free) continue;
      const [a, b] = free;
      taken.push([a, b - 11, a + long, b + 3]);
      svg.append(shape("text", { class: "label", x: a, y: b }, arms[index].name));
    }
  };

  watchers.push((index) => {
    for (const [one, point] of points.entries()) {
      point.setAttribute("tabindex", one === index ? 0 : -1);
      point.setAttribute("aria-selected", one === index);
      point.classList.toggle("chosen", one === index);
    }
    at = index;
  });
  svg.addEventListener("keydown", (event) => {
    const along = { ArrowLeft: ["bytes", -1], ArrowRight: ["bytes", 1], ArrowDown: ["delta", -1], ArrowUp: ["delta", 1], Home: ["bytes", -arms.length], End: ["bytes", arms.length] }[event.key];
    if (!along) return;
    event.preventDefault();
    const order = orders[along[0]];
    const to = Math.max(0, Math.min(order.length - 1, order.indexOf(at) + along[1]));
    choose(order[to]);
    points[at].focus();
  });
  const nearest = (event) => {
    const box = svg.getBoundingClientRect();
    const scaled = svg.viewBox.baseVal.width / box.width;
    const [x, y] = [(event.clientX - box.left) * scaled, (event.clientY - box.top) * scaled];
    const away = ([a, b]) => (a - x) ** 2 + (b - y) ** 2;
    return places.reduce((best, one, index) => (away(one) < away(places[best]) ? index : best), 0);
  };
  svg.addEventListener("pointermove", (event) => choose(nearest(event)));
  svg.addEventListener("click", (event) => choose(nearest(event)));
  svg.addEventListener("focusin", (event) => {
    const index = points.indexOf(event.target);
    if (index >= 0 && index !== at) choose(index);
  });
  return draw;
}
