// What every page's scripts share: the data, numbers in words, elements. Text goes in through textContent only, so that
// nothing in the data is ever markup. The other files follow this one in the same script.

const data = JSON.parse(document.getElementById("data").textContent);
const unknown = "not measured";

const known = (x) => x !== null && x !== undefined;
const grouped = (x) => x.toLocaleString("en-US");

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function percent(x) {
  if (!known(x)) return unknown;
  const hundredths = 100 * x;
  if (hundredths > 0 && hundredths < 1e-4) return "<\u00a00.0001\u00a0%";
  return (hundredths >= 9.95 || hundredths === 0 ? hundredths.toFixed(0) : String(+hundredths.toPrecision(2))) + "\u00a0%";
}

const number = (x) => (known(x) ? String(+x.toPrecision(3)).replace("-", "\u2212") : unknown);

// One thing of the page is chosen (a token, an arm), by pointer or by keys; whoever shows it listens.
const watchers = [];
function choose(index) {
  for (const watcher of watchers) watcher(index);
}
