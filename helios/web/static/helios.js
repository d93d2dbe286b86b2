// Charts of a page, from its own JSON. Without this script a page has a picture of each, and its table.
"use strict";

(() => {
  const COLOURS = 9;  // in helios.css, --chart-1 and on: three to one against the ground, told apart by the colour-blind
  const HEIGHT = 260, SMALL = 130;
  const DAY_S = 86400;
  const LENGTHS_S = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 4 * 3600, 8 * 3600, ...[1, 2, 4, 7, 14, 28, 56, 112, 364].map(days => days * DAY_S)];
  // Least step, its label, and what is added where a new year or day begins.
  const NO = null;
  const DATES = [
    [364 * DAY_S, "{YYYY}", NO, NO, NO, NO, NO, NO, 1],
    [28 * DAY_S, "{MMM}", "\n{YYYY}", NO, NO, NO, NO, NO, 1],
    [DAY_S, "{D} {MMM}", "\n{YYYY}", NO, NO, NO, NO, NO, 1],
    [60, "{HH}:{mm}", "\n{D} {MMM} {YYYY}", NO, "\n{D} {MMM}", NO, NO, NO, 1],
  ];
  const ASK = { headers: { Accept: "application/json" }, credentials: "same-origin", cache: "no-store" };

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const duration = seconds => {
    for (const [unit, name] of [[86400, "d"], [3600, "h"], [60, "min"]])
      if (seconds >= unit) return `${+(seconds / unit).toPrecision(3)} ${name}`;
    return `${+seconds.toPrecision(3)} s`;
  };
  const written = (value, unit) =>
    value == null ? "-" : unit === "s" ? duration(value) : value.toLocaleString("en", Math.abs(value) < 1 ? { maximumSignificantDigits: 3 } : { maximumFractionDigits: 2 });

  // Areas and bars on each other: each becomes the sum of itself and those before it, unknown where nothing is known.
  const stacked = lines => {
    const known = lines[0].values.map((_, at) => lines.some(line => line.values[at] != null));
    const sums = known.map(() => 0);
    return lines.map(line => line.values.map((value, at) => known[at] ? (sums[at] += value || 0) : null));
  };

  // A value between two unknown ones is on no line: it is a point.
  const alone = (plot, place) => {
    const values = plot.data[place];
    return [...values.keys()].filter(at => values[at] != null && values[at - 1] == null && values[at + 1] == null);
  };

  const draw = (figure, chart) => {
    const box = figure.querySelector(".drawing");
    const isSmall = figure.classList.contains("small"), height = isSmall ? SMALL : HEIGHT;
    const bounds = chart.lines.filter(line => line.is_bound);
    const lines = chart.lines.filter(line => !line.is_bound);
    const isLine = chart.kind === "line", isStack = chart.kind === "stack";
    // The last step has a length too: areas and bounds go on to its end.
    const last = chart.times.at(-1), end = chart.end ?? last;
    const goOn = values => end > last ? [...values, values.at(-1)] : values;
    const leave = values => end > last ? [...values, null] : values;
    const values = isLine ? lines.map(line => leave(line.values)) : stacked(lines).map(isStack ? goOn : leave);
    // The topmost area is drawn first, so that those below it stay visible.
    const order = lines.map((_, at) => at);
    if (!isLine) order.reverse();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid") } };
    // A window may cut the first and the last step, so that each bar has a width of its own. uPlot's have one for all.
    const bars = (plot, place) => {
      const path = new Path2D(), at = (value, scale) => plot.valToPos(value, scale, true);
      chart.times.forEach((begin, index) => {
        const value = plot.data[place][index], next = chart.times[index + 1] ?? end;
        if (value == null) return;
        const left = at(begin, "x"), top = at(value, "y");
        path.rect(left, top, Math.max(0.85 * (at(next, "x") - left), 1), at(0, "y") - top);
      });
      return { stroke: path, fill: path, clip: null, band: null, gaps: null, flags: 3 };
    };
    const stepped = uPlot.paths.stepped({ align: 1 });
    const paths = { line: undefined, stack: stepped, bars }[chart.kind];
    const series = order.map(at => {
      const drawn = colour(`--chart-${at % COLOURS + 1}`);
      return {
        label: lines[at].name, paths,
        stroke: isLine ? drawn : colour("--card"), width: isLine ? 2 : 1, dash: isLine && at % 2 ? [8, 3] : undefined,
        fill: isLine ? undefined : drawn,
        points: { show: isLine, filter: alone, fill: drawn, stroke: drawn },
        value: (_, __, ___, index) => index == null ? "" : written(lines[at].values[index], chart.unit),
      };
    });
    for (const bound of bounds)
      series.push({
        label: bound.name, stroke: colour("--ink"), width: 1.5, dash: [6, 4], points: { show: false }, paths: stepped,
        value: (_, __, ___, index) => index == null ? "" : written(bound.values[index], chart.unit),
      });
    const zoom = "zoom" in figure.dataset;
    const isDaily = chart.times.length > 2 && chart.times[2] - chart.times[1] > 0.9 * DAY_S;
    const zoned = seconds => uPlot.tzDate(new Date(seconds * 1e3), chart.timezone);
    const moment = uPlot.fmtDate(isDaily ? "{YYYY}-{MM}-{DD}" : "{YYYY}-{MM}-{DD} {HH}:{mm}");
    const options = {
      width: Math.max(box.clientWidth, 200), height,
      tzDate: zoned,
      scales: { x: { range: [chart.times[0], end] }, y: { range: (_, low, high) => [Math.min(low ?? 0, 0) * 1.05, high > 0 ? high * 1.05 : 1] } },
      series: [{ label: "Time", value: (_, time) => time == null ? "" : moment(zoned(time)) }, ...series],
      axes: [
        { ...axis, values: DATES, space: 70 },
        { ...axis, size: 64, space: isSmall ? 18 : 34, incrs: chart.unit === "s" ? LENGTHS_S : undefined,
          values: (_, ticks) => ticks.map(tick => written(tick, chart.unit)) },
      ],
      legend: { live: !isSmall, show: lines.length + bounds.length > 1 || lines[0].name !== "all jobs" },
      cursor: { drag: { x: zoom, y: false, setScale: false }, points: { show: isLine } },
      hooks: {
        setSelect: [plot => {
          if (!zoom || plot.select.width < 8) return;
          const [from, to] = [0, plot.select.width].map(x => plot.posToVal(plot.select.left + x, "x"));
          pickWindow(from, to);
        }],
      },
    };
    const times = end > last ? [...chart.times, end] : chart.times;
    const data = [times, ...order.map(at => values[at]), ...bounds.map(bound => goOn(bound.values))];
    box.replaceChildren();
    const plot = new uPlot(options, data, box);
    // A click on a name hides its line; of a stack that would leave the others where they are.
    if (!isLine) for (const name of box.querySelectorAll(".u-legend .u-label")) name.style.pointerEvents = "none";
    new ResizeObserver(() => plot.setSize({ width: Math.max(box.clientWidth, 200), height })).observe(box);
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
