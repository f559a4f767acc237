// Layers × heads as a grid of cells, one of them in the tab order; arrows move, and the line under it says the numbers.

function heatMap(figure, rows) {
  const grid = figure.querySelector("[role=grid]");
  const readout = figure.querySelector(".readout");
  const edges = ladder(rows.flat());
  const heads = data.heads;
  legend(figure.querySelector(".legend"), edges, { missing: rows.flat().some((x) => !known(x)) });
  grid.style.setProperty("--columns", rows.length);
  grid.style.setProperty("--tall", `${Math.max(9, Math.min(22, Math.floor(420 / heads)))}px`);

  const says = (layer, head) => `Layer ${data.layers[layer]}, head ${head}: ${percent(rows[layer][head])}`;
  const cells = [];
  const where = new Map();
  for (let head = 0; head < heads; head++) {
    const row = element("div");
    row.setAttribute("role", "row");
    const side = element("span", "side", head % Math.ceil(heads / 16) ? "" : head ? String(head) : "head 0");
    side.setAttribute("role", "rowheader");
    row.append(side);
    cells.push(
      rows.map((_, layer) => {
        const cell = element("div", level(rows[layer][head], edges));
        cell.setAttribute("role", "gridcell");
        cell.setAttribute("aria-label", says(layer, head));
        cell.tabIndex = -1;
        where.set(cell, [layer, head]);
        row.append(cell);
        return cell;
      }),
    );
    grid.append(row);
  }
  const under = element("div");
  under.setAttribute("role", "row");
  under.append(element("span", "side", "layer"));
  const every = Math.ceil(rows.length / 8);
  rows.forEach((_, layer) => under.append(element("span", "under", layer % every ? "" : String(data.layers[layer]))));
  under.setAttribute("aria-hidden", "true"); // cells say their own layer
  grid.append(under);
  if (!cells.length || !cells[0].length) return;

  let [layer, head] = [0, 0];
  const move = (toLayer, toHead) => {
    cells[head][layer].tabIndex = -1;
    layer = Math.max(0, Math.min(rows.length - 1, toLayer));
    head = Math.max(0, Math.min(heads - 1, toHead));
    cells[head][layer].tabIndex = 0;
  };
  const tell = (cell) => (readout.textContent = says(...where.get(cell)));
  move(0, 0);
  readout.textContent = "Point at a cell, or move to one with the arrow keys.";
  grid.addEventListener("keydown", (event) => {
    const ends = event.ctrlKey || event.metaKey;
    const to = {
      ArrowLeft: [layer - 1, head],
      ArrowRight: [layer + 1, head],
      ArrowUp: [layer, head - 1],
      ArrowDown: [layer, head + 1],
      Home: [0, ends ? 0 : head],
      End: [rows.length, ends ? heads : head],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    move(...to);
    cells[head][layer].focus();
  });
  grid.addEventListener("focusin", (event) => {
    if (!where.has(event.target)) return;
    move(...where.get(event.target));
    tell(event.target);
  });
  grid.addEventListener("pointerover", (event) => where.has(event.target) && tell(event.target));
}
