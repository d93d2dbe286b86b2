// Charts of a page, from its own JSON. Without this script a page has a picture of each, and its table.
"use strict";

(() => {
  const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#8C6D31", "#8a8f98"];
  const HEIGHT = 260;
  const ASK = { headers: { Accept: "application/json" }, credentials: "same-origin", cache: "no-store" };

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const duration = seconds => {
    for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= unit) return `${+(seconds / unit).toPrecision(3)} ${name}`;
    return `${+seconds.toPrecision(3)} s`;
  };
  const written = (value, unit) =>
    value == null ? "-" : unit === "s" ? duration(value) : value.toLocaleString("en", { maximumFractionDigits: 2 });

  // Areas on each other: each line becomes the sum of itself and those before it.
  const stacked = lines => {
    const sums = [];
    return lines.map(line => line.values.map((value, at) => (sums[at] = (sums[at] || 0) + (value || 0))));
  };

  const draw = (figure, chart) => {
    const box = figure.querySelector(".drawing");
    const bounds = chart.lines.filter(line => line.is_bound);
    const lines = chart.lines.filter(line => !line.is_bound);
    const isStack = chart.kind === "stack";
    const values = isStack ? stacked(lines) : lines.map(line => line.values);
    // The topmost area is drawn first, so that those below it stay visible.
    const order = lines.map((_, at) => at);
    if (isStack) order.reverse();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid") } };
    const series = order.map(at => ({
      label: lines[at].name,
      stroke: COLOURS[at % COLOURS.length],
      width: isStack ? 0 : 2,
      fill: isStack || chart.kind === "bars" ? COLOURS[at % COLOURS.length] : undefined,
      paths: chart.kind === "bars" ? uPlot.paths.bars({ size: [0.8, 60] }) : isStack ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: chart.kind === "line" && chart.times.length < 2 },
      value: (_, __, ___, index) => written(index == null ? null : lines[at].values[index], chart.unit),
    }));
    for (const bound of bounds)
      series.push({
        label: bound.name, stroke: colour("--ink"), width: 1.5, dash: [6, 4], points: { show: false },
        value: (_, value) => written(value, chart.unit),
      });
    const options = {
      width: Math.max(box.clientWidth, 200), height: HEIGHT,
      tzDate: seconds => uPlot.tzDate(new Date(seconds * 1e3), chart.timezone),
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
      series: [{ label: "Time" }, ...series],
      axes: [
        { ...axis },
        { ...axis, size: 64, values: (_, ticks) => ticks.map(tick => written(tick, chart.unit)) },
      ],
      cursor: { drag: { x: "zoom" in figure.dataset, y: false, setScale: false } },
      hooks: {
        setSelect: [plot => {
          if (!("zoom" in figure.dataset) || plot.select.width < 8) return;
          const [from, to] = [0, plot.select.width].map(x => plot.posToVal(plot.select.left + x, "x"));
          pickWindow(from, to);
        }],
      },
    };
    const data = [chart.times, ...order.map(at => values[at]), ...bounds.map(bound => bound.values)];
    box.replaceChildren();
    const plot = new uPlot(options, data, box);
    new ResizeObserver(() => plot.setSize({ width: Math.max(box.clientWidth, 200), height: HEIGHT })).observe(box);
  };

  const pickWindow = (from, to) => {
    const there = new URL(location.href);
    const iso = seconds => new Date(Math.round(seconds) * 1e3).toISOString().slice(0, 19) + "Z";
    there.searchParams.set("from", iso(from));
    there.searchParams.set("to", iso(to));
    there.searchParams.delete("page");
    location.assign(there);
  };

  const drawAll = async () => {
    const figures = document.querySelectorAll("figure.chart");
    if (!figures.length) return;
    const answer = await fetch(location.href, ASK);
    if (!answer.ok) throw new Error(`The charts' values could not be read: ${answer.status}`);
    const { charts } = await answer.json();
    for (const figure of figures) draw(figure, charts[figure.dataset.chart]);
  };

  const drawOrSay = () => drawAll().catch(reason => {
    for (const box of document.querySelectorAll(".drawing")) box.textContent = reason.message;
  });
  drawOrSay();
  document.addEventListener("draw-charts", drawOrSay);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOrSay);
})();
