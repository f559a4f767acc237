// What the pictures of a comparison share: the arms, the one that is chosen, scales of nats and bytes. Whoever shows an arm
// listens (`watchers`).

const arms = data.arms;
const calm = 0.06; // nats: pictures whose values all lie within are linear
const unit = 0.02; // nats: the others are even up to here, and by ratio beyond

const byNats = {
  to: (x) => Math.asinh(x / unit),
  ticks: (low, high) => [-10, -3, -1, -0.3, -0.1, -0.03, 0, 0.03, 0.1, 0.3, 1, 3, 10].filter((x) => x >= low && x <= high),
};
const natsOf = (low, high) => (Math.max(-low, high) <= calm ? asIs : byNats);
const nats = (x) => (x > 0 ? "+" : "") + number(x);

const byBytes = {
  to: Math.log2,
  ticks: (low, high, most) => {
    const [least, last] = [Math.ceil(Math.log2(low)), Math.floor(Math.log2(high))];
    const step = Math.max(1, Math.ceil((last - least + 1) / most));
    const all = [];
    for (let power = least; power <= last; power += step) all.push(2 ** power);
    return all.length ? all : [low];
  },
};

function bytes(x) {
  const [name, scale] = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]].find(([, one]) => x >= one) ?? ["B", 1];
  return `${+(x / scale).toPrecision(3)}\u00a0${name}`;
}

function limits(values, least) {
  let [low, high] = [0, least];
  for (const x of values) if (known(x)) [low, high] = [Math.min(low, x), Math.max(high, x)];
  return [low < 0 ? Math.min(low * 1.2, -least / 2) : 0, high * 1.2];
}

watchers.push((index) => {
  for (const about of document.querySelectorAll(".about")) about.textContent = arms[index].says;
  for (const row of document.querySelectorAll("tr.chosen")) row.classList.remove("chosen");
  document.querySelector(`th [data-arm='${index}']`)?.closest("tr").classList.add("chosen");
});
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-arm]");
  if (button) choose(+button.dataset.arm);
});
