"use strict";
// Makes the report answer to the mouse. Without it every drawing and table is still there: this only adds.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let data = null;

  async function unpacked(id) {
    const letters = document.getElementById(id).textContent.trim();
    const bytes = Uint8Array.from(atob(letters), (letter) => letter.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(whole).text();
  }

  // The drawings' stand-in colours become those of the page, light or dark.
  function inColours(item) {
    const style = getComputedStyle(document.documentElement);
    let text = JSON.stringify(item);
    for (const [standIn, name] of Object.entries(data.colours)) {
      text = text.replaceAll(standIn, style.getPropertyValue(`--${name}`).trim());
    }
    return JSON.parse(text);
  }

  // A live plot stands in front of its drawing and says the same words to a screen reader.
  function stage(figure) {
    figure.querySelector(".live")?.remove();
    const live = document.createElement("div");
    live.className = "live";
    live.setAttribute("role", "img");
    const svg = figure.querySelector("svg");
    const words = svg
      ? [...svg.querySelectorAll(":scope > title, :scope > desc")].map((part) => part.textContent).join(". ")
      : figure.querySelector("figcaption").textContent;
    live.setAttribute("aria-label", words);
    figure.prepend(live);
    return live;
  }

  async function draw() {
    for (const document_ of [...Bokeh.documents]) document_.clear();
    Bokeh.documents.length = 0;
    for (const figure of document.querySelectorAll("figure[data-live]")) {
      const item = data.figures[figure.dataset.live];
      if (!item) continue;
      figure.classList.add("alive"); // first, so that the plot finds how much room there is
      await Bokeh.embed.embed_item(inColours(item), stage(figure));
    }
    compare();
  }

  function named(name) {
    return Bokeh.documents.flatMap((document_) => document_.get_model_by_name(name) ?? []);
  }

  function source(name, column) {
    return named(name).filter((found) => column in found.data);
  }

  function span(range, start, end) {
    range.setv({ start, end, reset_start: start, reset_end: end });
  }

  function middles(edges) {
    return edges.slice(1).map((edge, i) => (edge + edges[i]) / 2);
  }

  function fill(side, trial) {
    const { edges, series, pool } = trial;
    const count = Math.max(edges.length - 1, 0);
    const start = edges[0] ?? 0;
    const end = edges[count] ?? start + 1;
    const middle = middles(edges);
    const ledger = { x: middle, width: middle.map((_, i) => edges[i + 1] - edges[i]) };
    for (const account of data.compared.accounts) {
      const parts = series[account] ?? new Array(count).fill(0);
      ledger[account] = parts.map((part) => (part / 10000) * pool / data.compared.scale);
    }
    for (const found of source(side, "payload")) {
      found.data = ledger;
      span(found.document.roots()[0].x_range, start, end);
    }
    for (const line of named(`${side}-pool`)) line.location = pool / data.compared.scale;
    const x = middle.map((value) => (100 * (value - start)) / (end - start));
    const percents = (parts) => (parts ?? []).map((part) => part / 100);
    for (const found of source(side, "live")) {
      found.data = { x, live: percents(trial.live), allocated: percents(trial.allocated) };
    }
    const times = (values) => (values ?? []).map((value) => value ?? NaN);
    for (const found of source(side, "mean")) {
      found.data = { x, mean: times(trial.mean), longest: times(trial.longest) };
    }
  }

  // Both trials on one scale, from zero.
  function scaleSteps(trials) {
    const most = Math.max(1e-9, ...trials.flatMap((trial) => trial.longest ?? []).filter((value) => value !== null));
    for (const found of source("A", "mean")) span(found.document.roots()[0].y_range, 0, 1.05 * most);
  }

  // As the page's other tables have their numbers: whole ones in full, others by four digits.
  function shown(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
    const rounded = Number(value.toPrecision(4));
    if (size < 1e-4 || size >= 1e15) return rounded.toExponential().replace(/e([+-])(\d)$/, "e$10$2");
    return size < 1000 ? String(rounded) : rounded.toLocaleString("en");
  }

  function percent(share) {
    return `${(100 * share).toFixed(1).replace(/^-(0\.0)$/, "$1")} %`;
  }

  function row(name, a, b) {
    const known = a !== null && b !== null;
    const share = known && a !== 0 ? percent(b / a - 1) : "–";
    const line = document.createElement("tr");
    const head = document.createElement("th");
    head.scope = "row";
    head.textContent = name;
    line.append(head);
    for (const text of [shown(a), shown(b), known ? shown(b - a) : "–", share]) {
      const cell = document.createElement("td");
      cell.className = "n";
      cell.textContent = text;
      line.append(cell);
    }
    return line;
  }

  function compare() {
    const box = document.querySelector(".compare");
    if (!box) return;
    const [a, b] = ["a", "b"].map((side) => data.compared.trials[document.getElementById(`compare-${side}`).value]);
    fill("A", a);
    fill("B", b);
    scaleSteps([a, b]);
    const rows = data.compared.quantities.map((name, i) => row(name, a.numbers[i], b.numbers[i]));
    document.querySelector("#compare-table tbody").replaceChildren(...rows);
  }

  async function begin() {
    data = JSON.parse(await unpacked("data"));
    const script = document.createElement("script");
    script.textContent = await unpacked("library");
    document.head.append(script);
    Bokeh.set_log_level("warn");
    const box = document.querySelector(".compare");
    if (box) {
      box.hidden = false;
      box.addEventListener("change", compare);
    }
    document.documentElement.classList.add("scripted");
    await draw();
    dark.addEventListener("change", draw);
    document.documentElement.dataset.live = "ready";
  }

  if ("DecompressionStream" in window) begin();
})();
