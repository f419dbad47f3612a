// tok/s, time to first token and cost over the answers of a session.
import uPlot from "uplot";
import type { Usage } from "./wire";

/** Draw into `place`; returns a function that removes the plots again. */
export function draw(place: HTMLElement, usage: Usage[]): () => void {
  /** A canvas does not understand CSS variables: resolve one in the current colours. */
  const colour = (name: string): string => {
    place.style.color = `var(${name})`;
    const found = getComputedStyle(place).color;
    place.style.color = "";
    return found;
  };
  let total = 0;
  const sums = usage.map((one) => (one.cost == null ? null : (total += one.cost)));
  const plots: [string, (number | null)[]][] = [
    ["tokens a second, by answer", usage.map((one) => one.tokens_per_second)],
    ["first token in ms, by answer", usage.map((one) => one.ttft_seconds * 1000)],
  ];
  if (sums.some((one) => one !== null)) plots.push(["cost so far, by answer", sums]);
  const width = (): number => Math.max(240, place.clientWidth);
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  const drawn = plots.map(([name, values]) => {
    const box = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = name;
    box.append(caption);
    place.append(box);
    const numbers = usage.map((_, n) => n + 1);
    return new uPlot(
      {
        width: width(),
        height: 140,
        legend: { show: false },
        cursor: { y: false },
        scales: { x: { time: false, range: (_, low, high) => [low - 0.5, high + 0.5] }, y: { range: (_, __, high) => [0, (high || 1) * 1.15] } },
        axes: [{ ...axis, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100] }, { ...axis, size: 56 }],
        series: [{}, { label: name, stroke: colour("--accent"), width: 2, points: { show: true, size: 6, fill: colour("--accent") } }],
      },
      [numbers, values],
      box,
    );
  });
  const watch = new ResizeObserver(() => drawn.forEach((plot) => plot.width !== width() && plot.setSize({ width: width(), height: 140 })));
  watch.observe(place);
  return () => {
    watch.disconnect();
    for (const plot of drawn) plot.destroy();
    place.replaceChildren();
  };
}
