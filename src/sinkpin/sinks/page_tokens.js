// The prompt, coloured by mass. All tokens are in the document, so that the browser's own search finds them; chunks out
// of sight are not laid out (content-visibility in page.css). Of a long prompt, the first chunks and those with sinks are
// printed.

const printed = 16; // chunks

function tokenText() {
  const box = document.getElementById("tokens");
  const edges = ladder(tokens.mass);
  const missing = tokens.mass.some((x) => !known(x));
  legend(document.getElementById("token-legend"), edges, {
    missing,
    sink: data.sinks.some((sink) => sink.outlier),
    listed: data.sinks.some((sink) => !sink.outlier),
  });

  const spans = new Array(count);
  const blank = element("span");
  blank.setAttribute("role", "option");
  const spanOf = (index) => {
    const span = blank.cloneNode();
    const sink = sinks.get(index);
    span.className = level(tokens.mass[index], edges) + (sink ? (sink.outlier ? " sink" : " listed") : "");
    span.textContent = tokens.shown[index];
    return (spans[index] = span);
  };
  let left = 0;
  const all = document.createDocumentFragment();
  for (let start = 0; start < count; start += data.chunk) {
    const end = Math.min(start + data.chunk, count);
    const chunk = element("div", "chunk");
    chunk.dataset.from = start;
    chunk.setAttribute("role", "group");
    chunk.setAttribute("aria-label", `tokens ${start} to ${end - 1}`);
    let keep = start < printed * data.chunk;
    for (let index = start; index < end; index++) {
      // Dots are no spaces to a browser: without this, lines would break within words.
      if (tokens.shown[index].startsWith("·")) chunk.append(element("wbr"));
      chunk.append(spanOf(index));
      if (tokens.shown[index].includes("⏎")) chunk.append(element("br"));
      keep ||= sinks.has(index);
    }
    if (!keep) {
      chunk.classList.add("unprinted");
      left += end - start;
    }
    all.append(chunk);
  }
  box.append(all);
  if (count) box.style.setProperty("--chunk", `${box.firstChild.offsetHeight}px`); // a guess for those out of sight
  if (left) document.getElementById("left-out").textContent = `${grouped(left)} tokens are left out of print.`;

  const indexOf = new Map(spans.map((span, index) => [span, index]));
  let at = 0;
  const move = (to) => {
    spans[at].tabIndex = -1;
    spans[at].removeAttribute("aria-selected");
    at = Math.max(0, Math.min(count - 1, to));
    spans[at].tabIndex = 0;
    spans[at].setAttribute("aria-selected", "true");
  };
  // The token above or below: the nearest of the first line met in that direction.
  const vertical = (way) => {
    const middle = (span) => {
      const place = span.getClientRects()[0];
      return [place.left + place.width / 2, place.top];
    };
    const [x, y] = middle(spans[at]);
    let [best, distance, line] = [at, Infinity, null];
    for (let index = at + way; index >= 0 && index < count; index += way) {
      const [left, top] = middle(spans[index]);
      if (Math.abs(top - y) < 3) continue;
      if (line === null) line = top;
      if (Math.abs(top - line) > 3) break;
      if (Math.abs(left - x) < distance) [best, distance] = [index, Math.abs(left - x)];
    }
    return best;
  };
  const go = (to) => {
    move(to);
    spans[at].focus({ preventScroll: true });
    show(spans[at]);
  };
  // Only the box scrolls, never the page under the reader's hands.
  const reveal = (span) => {
    const [inner, outer] = [span.getBoundingClientRect(), box.getBoundingClientRect()];
    if (inner.top < outer.top + 8) box.scrollTop -= outer.top + 48 - inner.top;
    if (inner.bottom > outer.bottom - 8) box.scrollTop += inner.bottom - outer.bottom + 48;
  };
  // For some frames, because chunks get their true heights, and push others, only when they are first laid out.
  let wanted = null;
  const show = (span) => {
    wanted = span;
    let frames = 10;
    const again = () => {
      if (wanted !== span) return;
      reveal(span);
      if (--frames) requestAnimationFrame(again);
    };
    again();
  };
  if (!count) return;
  move(0);
  box.addEventListener("keydown", (event) => {
    const to = {
      ArrowLeft: () => at - 1,
      ArrowRight: () => at + 1,
      ArrowUp: () => vertical(-1),
      ArrowDown: () => vertical(1),
      PageUp: () => at - data.chunk,
      PageDown: () => at + data.chunk,
      Home: () => 0,
      End: () => count - 1,
    }[event.key];
    if (!to) return;
    event.preventDefault();
    go(to());
  });
  box.addEventListener("focusin", (event) => {
    if (!indexOf.has(event.target)) return;
    move(indexOf.get(event.target));
    choose(at);
  });
  box.addEventListener("pointerover", (event) => indexOf.has(event.target) && choose(indexOf.get(event.target)));
  box.addEventListener("click", (event) => indexOf.has(event.target) && go(indexOf.get(event.target)));
  const about = document.getElementById("about-token");
  watchers.push((index) => about.replaceChildren(...describe(index)));
  about.textContent = "Point at a token, or move to one with the arrow keys.";
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-token]");
    if (!button) return;
    document.getElementById("text").scrollIntoView();
    go(+button.dataset.token);
  });
  return (index) => {
    move(index);
    show(spans[index]);
  };
}
