// Shows the board that the server sends, and starts the sale.
"use strict";

const byId = (id) => document.getElementById(id);
let board = null;
let connected = false;

function show() {
  const { phase, backend_trouble, sale_trouble } = board ?? {};
  const running = phase === "running";
  byId("start").disabled = !connected || running || Boolean(backend_trouble);
  byId("start").textContent = running ? "Running …" : phase === "finished" ? "Run it again" : "Start the sale";
  setText(byId("status"), status());

  const troubles = [sale_trouble];
  if (!connected) {
    troubles.push("The example does not answer. Is it still running?");
  } else if (backend_trouble) {
    const rest = running ? " Buyers in line ask again until their wait of two minutes is over." : "";
    troubles.push(`The locks cannot be reached now: ${backend_trouble}.${rest}`);
  } else if (board.with_lock.gave_up > 0) {
    troubles.push(`${board.with_lock.gave_up} buyers gave up: ${board.with_lock.reason}.`);
  }
  const trouble = troubles.filter(Boolean).join(" ");
  setText(byId("trouble"), trouble);
  byId("trouble").hidden = !trouble;
  if (!board) return;

  const half = board.buyers / board.processes;
  setText(byId("setting"), board.processes === 2
    ? `Two processes bring ${half} buyers each; the server of LOCK_URL keeps the lock.`
    : "One process brings all of them, since a lock in memory ends there. For two: LOCK_URL=redis://127.0.0.1");
  showPanel("without_lock");
  showPanel("with_lock");
}

function status() {
  if (!connected) return "Not connected.";
  if (board.phase === "ready") return "Ready.";
  if (board.phase === "running") return "The sale is running.";
  const words = ({ sold, oversold }) => `${sold} sold, ${oversold || "none"} too many`;
  return `Without the lock: ${words(board.without_lock)}. With it: ${words(board.with_lock)}.`;
}

// A screen reader reads out every text that is written, so unchanged text is not written again.
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function showPanel(id) {
  const panel = board[id];
  const begun = board.phase !== "ready";
  const finished = board.phase === "finished";
  const { waits, holder } = panel;
  const texts = {
    ...panel,
    holder: holder && !finished ? `process ${holder.process}, buyer ${holder.buyer}` : "nobody",
    median: waits.length ? seconds(sorted(waits)[Math.floor(waits.length / 2)]) : "–",
  };
  for (const place of byId(id).querySelectorAll("[data-of]")) {
    setText(place, begun ? String(texts[place.dataset.of]) : "–");
  }
  byId(id).classList.toggle("idle", !begun);
  byId(id).classList.toggle("wrong", panel.oversold > 0);
  byId(id).classList.toggle("right", finished && panel.oversold === 0);
  drawChart(byId(id).querySelector("svg"), waits);
}

const sorted = (waits) => waits.map(([ms]) => ms).sort((a, b) => a - b);
const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;

// Draws one line for each buyer, in the order of their answers. Both charts have the same scale.
function drawChart(svg, waits) {
  const width = svg.clientWidth, height = svg.clientHeight;
  const [left, right, top, bottom] = [34, 14, 24, 38];
  const longest = Math.max(1000, ...[...board.without_lock.waits, ...board.with_lock.waits].map(([ms]) => ms));
  const step = [1, 2, 5, 10, 20].find((step) => longest / 1000 <= 4 * step) ?? 60;
  const x = (buyer) => left + (buyer / board.buyers) * (width - left - right);
  const y = (ms) => height - bottom - (ms / longest) * (height - top - bottom);

  const marks = [text(0, 11, "start", "wait, s"), text(width - right, height - 4, "end", "buyers, in the order of their answers")];
  for (let s = 0; s * 1000 <= longest; s += step) {
    marks.push(line(left, y(s * 1000), width - right, y(s * 1000)), text(left - 8, y(s * 1000) + 4, "end", s));
  }
  for (let buyer = 0; buyer <= board.buyers; buyer += 100) {
    marks.push(text(x(buyer), height - bottom + 15, "middle", buyer));
  }
  let sold = 0;
  waits.forEach(([ms, outcome], index) => {
    if (outcome === "sold" && ++sold > board.stock) outcome = "oversold";
    marks.push(line(x(index + 0.5), y(0), x(index + 0.5), y(ms), outcome));
  });
  marks.push(line(x(board.stock), 0, x(board.stock), y(0), "stock"), text(x(board.stock) + 6, 11, "start", `${board.stock} in stock`));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  // The lines overlap a little. Otherwise there would be gaps where the lines do not meet the pixels.
  svg.setAttribute("stroke-width", (width - left - right) / board.buyers + 0.7);
  svg.setAttribute("aria-label", waits.length
    ? `${waits.length} buyers have an answer. The first waited ${seconds(waits[0][0])}, the last ${seconds(waits.at(-1)[0])}.`
    : "No buyer has an answer yet.");
  svg.replaceChildren(...marks);
}

function element(name, attributes, content = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = content;
  return made;
}

const text = (x, y, anchor, content) => element("text", { x, y, "text-anchor": anchor, stroke: "none" }, content);
const line = (x1, y1, x2, y2, name = "grid") => element("line", { x1, y1, x2, y2, class: name });

byId("start").addEventListener("click", async () => {
  byId("start").disabled = true;
  try {
    // The response is not read, because the board, which the server sends anyway, has its content.
    await fetch("/start", { method: "POST" });
  } catch {
    connected = false;
  }
  show();
});

const events = new EventSource("/events");
events.onmessage = ({ data }) => {
  board = JSON.parse(data);
  connected = true;
  show();
};
events.onerror = () => {
  connected = false;
  show();
};
addEventListener("resize", () => board && show());
