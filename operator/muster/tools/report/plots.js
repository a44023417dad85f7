// Draws the plots of a page with uPlot. Text of jobs reaches the page as text of elements and of canvases only.
"use strict";
(() => {
  const GAP_PIXELS = 70; // from one tick or mark with a name to the next
  const drawn = new Map(); // by place on the page, so that a plot that is drawn again keeps its zoom
  const colour = (role) => getComputedStyle(document.documentElement).getPropertyValue(`--${role}`);
  const short = (value) => (value === null || value === undefined ? "" : Number(value.toPrecision(6)).toLocaleString("en", { maximumSignificantDigits: 6 }));

  // Points without a neighbour, which a line alone would not show.
  function isolated(plot, series) {
    const values = Array.from(plot.data[series].entries()).filter(([, value]) => value !== undefined);
    const has = (at) => values[at] !== undefined && values[at][1] !== null;
    return values.filter((_, at) => has(at) && !has(at - 1) && !has(at + 1)).map(([at]) => at);
  }

  function marks(data) {
    return (plot) => {
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("mark");
      ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "top";
      let free = -Infinity;
      data.marks.forEach(([at, label]) => {
        const x = plot.valToPos(at, "x", true);
        if (!(x >= bbox.left && x <= bbox.left + bbox.width)) { return; }
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
        const width = ctx.measureText(label).width + 8 * devicePixelRatio;
        const left = x + width > bbox.left + bbox.width ? x - width : x + 4 * devicePixelRatio;
        if (left > free) {
          ctx.fillText(label, left, bbox.top);
          free = left + width;
        }
      });
      ctx.restore();
    };
  }

  function options(data, width) {
    const names = new Set();
    const line = ({ label, colour: role, width: stroke, dots }) => {
      const again = names.has(label);
      names.add(label);
      const points = dots ? { show: true, size: 6 } : { show: true, size: 5, filter: isolated };
      return { label, stroke: () => colour(role), width: stroke, points: { ...points, fill: () => colour(role) }, value: (_, value) => short(value), class: again ? "again" : "first" };
    };
    const axis = (label) => ({ label, values: (_, splits) => splits.map(short), labelSize: 22, stroke: () => colour("ink"), font: "12px system-ui, sans-serif", labelFont: "13px system-ui, sans-serif", grid: { stroke: () => colour("grid"), width: 1 }, ticks: { stroke: () => colour("grid"), width: 1 } });
    const x = { ...axis(data.xLabel), ...(data.wholeX ? { incrs: [1, 2, 5].flatMap((n) => Array.from({ length: 16 }, (_, power) => n * 10 ** power)).sort((a, b) => a - b) } : {}) };
    if (data.ticks.length) {
      x.splits = () => data.ticks.map(([at]) => at);
      x.filter = (_, splits) => splits;
      x.values = (plot) => data.ticks.map(([, name], at) => (at % Math.ceil((data.ticks.length * GAP_PIXELS) / plot.width) ? "" : name));
    }
    const room = (_, low, high) => {
      if (low === null) { return [0, 1]; }
      const bottom = data.fromZero ? Math.min(0, low) : low;
      const span = high - bottom || Math.abs(high) || 1;
      return [data.fromZero && bottom === 0 ? 0 : bottom - 0.05 * span, high + 0.1 * span];
    };
    return {
      width,
      height: data.height,
      series: [{ label: data.xLabel, value: (_, value) => short(value) }, ...data.lines.map(line)],
      scales: { x: { time: false, ...(data.logX ? { distr: 3, log: 2 } : {}) }, y: data.logY ? { distr: 3 } : { range: room } },
      axes: [x, { ...axis(data.yLabel), size: 62 }],
      cursor: { drag: { x: true, y: false }, focus: { prox: 30 } },
      focus: { alpha: 0.4 },
      hooks: { draw: [marks(data)] },
    };
  }

  function draw(element, place) {
    const data = JSON.parse(element.dataset.plot);
    const tables = data.lines.map(({ points }) => [points.map(([at]) => at), points.map(([, value]) => value)]);
    const values = tables.length ? uPlot.join(tables) : [[], []];
    const before = drawn.get(place);
    element.textContent = "";
    const plot = new uPlot(options(data, element.clientWidth), values, element);
    if (before) {
      const { min, max } = before.plot.scales.x;
      const xs = before.plot.data[0];
      if (min > xs[0] || max < xs[xs.length - 1]) { plot.setScale("x", { min, max }); }
      before.sizes.disconnect();
      before.plot.destroy();
    }
    const sizes = new ResizeObserver(() => {
      if (element.clientWidth && element.clientWidth !== plot.width) { plot.setSize({ width: element.clientWidth, height: data.height }); }
    });
    sizes.observe(element);
    drawn.set(place, { plot, sizes });
  }

  window.drawPlots = () => {
    document.querySelectorAll("[data-plot]").forEach((element, at) => {
      if (!element.querySelector(".uplot")) { draw(element, `${element.dataset.name} ${at}`); }
    });
  };
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => drawn.forEach(({ plot }) => plot.redraw(false)));
  }
  window.drawPlots();
})();
