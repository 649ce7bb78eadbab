import { load } from "./engine.js";
import { draw, tallest } from "./charts.js";
import { duration } from "./time.js";

const $ = (id) => document.getElementById(id);
const fields = { limit: $("limit"), traffic: $("traffic"), cost: $("cost"), reserve: $("reserve"), log: $("log") };
const buttons = ["one", "ten", "wait", "clear", "share"].map($);

const kinds = {
  fixed_window: ["FixedWindow", "Counts anew in each window. Around an edge, the bursts of two windows pass."],
  sliding_window: ["SlidingWindow", "Estimates from two counters: the last window fades out. It errs a little, both ways."],
  sliding_log: ["SlidingLog", "Remembers each event for one period. Exact: never more than the limit."],
  token_bucket: ["TokenBucket", "Starts full and refills steadily. A burst passes, then the rate."],
  leaky_bucket: ["LeakyBucket", "Queues what it allows, and lets it go at an even pace."],
};

/** Returns the name of an algorithm and what is typical of it. */
const kind = (algorithm) => kinds[algorithm] ?? [algorithm, ""];

let library;
let steps = []; // sent by hand: numbers of requests, and "w" for a wait
let shown; // the last result without an error
const cards = new Map();

/** Reads the link, so that it shows what its sender saw. */
function restore() {
  const link = new URLSearchParams(location.hash.slice(1));
  fields.limit.value = link.get("limit") ?? "10/s";
  fields.traffic.value = link.get("traffic") ?? "edge";
  if (fields.traffic.selectedIndex < 0) fields.traffic.value = "edge";
  fields.cost.value = link.get("cost") ?? "1";
  fields.reserve.value = Number(link.get("reserve")) || 0; // a slider takes other text for its middle
  steps = (link.get("steps") ?? "").split(",").filter(Boolean);
}

function keepInLink() {
  const link = new URLSearchParams({ limit: fields.limit.value, traffic: fields.traffic.value, cost: fields.cost.value });
  if (fields.reserve.value !== "0") link.set("reserve", fields.reserve.value);
  if (steps.length) link.set("steps", steps.join(","));
  history.replaceState(null, "", `#${link.toString().replaceAll("%2F", "/").replaceAll("%2C", ",")}`);
}

/** Asks the library anew, and shows what it says. */
function update() {
  const pasted = fields.traffic.value === "log";
  document.body.classList.toggle("pasted", pasted);
  const result = library.simulate({
    limit: fields.limit.value,
    cost: Number(fields.cost.value),
    reserve: Number(fields.reserve.value),
    traffic: fields.traffic.value,
    log: fields.log.value,
    steps: steps.join(","),
  });
  const empty = pasted && !fields.log.value.trim() && result.error?.startsWith("paste lines");
  const error = (!empty && result.error) || "";
  if (empty) say("Paste some lines above, and the charts show what becomes of them.");
  if ($("error").textContent !== error) $("error").textContent = error;
  fields.limit.setAttribute("aria-invalid", error.includes("invalid limit"));
  fields.cost.setAttribute("aria-invalid", error.includes("number of events"));
  $("charts").classList.toggle("stale", Boolean(result.error));
  $("clear").hidden = steps.length === 0; // also where they are what is wrong
  if (result.error) return false;
  shown = { ...result, pasted };
  show();
  return true;
}

function card(algorithm) {
  if (!cards.has(algorithm)) {
    const element = $("card").content.cloneNode(true).firstElementChild;
    element.id = algorithm;
    element.querySelector("h2").textContent = kind(algorithm)[0];
    element.querySelector(".character").textContent = kind(algorithm)[1];
    $("charts").append(element);
    cards.set(algorithm, element);
  }
  return cards.get(algorithm);
}

function show() {
  $("bin").textContent = `a bar is ${duration(shown.bin)}`;
  $("wait").textContent = `Wait ${duration(shown.bin)}`;
  $("summary").textContent = summary();
  $("reserved").textContent = `for important requests: ${shown.reserved ? `${shown.reserved} (${fields.reserve.value}%)` : "nothing"}`;
  document.body.classList.toggle("reserving", shown.reserved > 0);
  const top = tallest(shown);
  for (const outcome of shown.outcomes) showOutcome(card(outcome.algorithm), outcome, top);
}

/** Returns a number of things in words. */
const count = (n, thing) => `${n} ${thing}${n === 1 ? "" : "s"}`;

function summary() {
  if (!shown.pasted) return "";
  const denied = shown.outcomes.map((o) => `${kind(o.algorithm)[0]} ${o.error ? "–" : o.deniedClients}`).join(", ");
  const left = shown.unreadable && ` Left out: ${shown.unreadable}.`;
  return `${count(shown.requests, "request")} of ${count(shown.clients, "client")}. Clients that were denied something: ${denied}.${left}`;
}

/** Returns in plain words why an algorithm cannot keep the limit. */
function refusal(error) {
  if (error.includes("cannot have a burst")) return "No chart: only the two buckets can have a burst.";
  if (error.includes("cannot count by calendar")) return "No chart: only a FixedWindow counts by a calendar.";
  return error;
}

/** Returns how many requests of each class were allowed. */
function classes(outcome) {
  if (!shown.reserved || outcome.error) return "";
  const important = outcome.important + outcome.refused;
  const others = shown.requests - important;
  return `Allowed: ${outcome.important} of ${important} important, ${outcome.within + outcome.beyond - outcome.important} of ${others} others.`;
}

/** Returns what the algorithm said to what was sent last. */
function answer(outcome) {
  if (shown.last <= 1) return outcome.answer;
  return `${outcome.granted} of ${shown.last} allowed. The last: ${outcome.answer}`;
}

function showOutcome(element, outcome, top) {
  const counts = { allowed: outcome.within + outcome.beyond, beyond: outcome.beyond, denied: outcome.denied, most: outcome.most };
  for (const [name, n] of Object.entries(counts)) {
    const dd = element.querySelector(`[data-count=${name}]`);
    dd.textContent = outcome.error ? "–" : n;
    dd.classList.toggle("some", n > 0);
  }
  element.querySelector(".most-label").textContent = `most in any ${duration(shown.period)}`;
  element.querySelector(".said").textContent = outcome.error ? refusal(outcome.error) : answer(outcome);
  element.querySelector(".classes").textContent = classes(outcome);
  const chart = element.querySelector(".chart");
  chart.hidden = Boolean(outcome.error);
  if (outcome.error) return;
  chart.setAttribute("aria-label", `Chart over time: ${counts.allowed} allowed, ${counts.beyond} of them more than the limit within one period, ${counts.denied} denied. ${classes(outcome)}`.trim());
  draw(chart, shown, outcome, top);
}

/** Does a step by hand, and reads out what became of it, in words that the result may give. */
function step(what, words) {
  steps.push(what);
  if (!update()) {
    steps.pop();
    return;
  }
  keepInLink();
  const granted = shown.outcomes.filter((o) => !o.error).map((o) => `${kind(o.algorithm)[0]} ${o.granted}`);
  say(shown.last ? `${words()}. Allowed: ${granted.join(", ")}.` : `${words()}.`);
}

function say(text) {
  $("answer").textContent = text;
}

async function share() {
  keepInLink();
  try {
    await navigator.clipboard.writeText(location.href);
    say("The link is copied.");
  } catch {
    say(`The link is the address of this page: ${location.href}`);
  }
}

function listen() {
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("input", () => {
    say("");
    update();
    keepInLink();
  });
  $("one").addEventListener("click", () => step("1", () => "Sent one"));
  $("ten").addEventListener("click", () => step("10", () => "Sent ten"));
  $("wait").addEventListener("click", () => step("w", () => `Waited ${duration(shown.bin)}`));
  $("clear").addEventListener("click", () => {
    steps = [];
    update();
    keepInLink();
    say("What you sent is cleared.");
    $("one").focus(); // the button in focus is gone
  });
  $("share").addEventListener("click", share);
  addEventListener("hashchange", () => {
    restore();
    say("");
    update();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown && show());
  new ResizeObserver(() => shown && show()).observe($("charts"));
}

async function start() {
  for (const b of buttons) b.disabled = true;
  try {
    library = await load();
  } catch (error) {
    say("");
    $("error").textContent = `The library could not be loaded: ${error.message}`;
    return;
  }
  for (const { name, title } of library.traffics) fields.traffic.append(new Option(title, name));
  fields.traffic.append(new Option("An access log, pasted", "log"));
  for (const b of buttons) b.disabled = false;
  restore();
  listen();
  say("");
  update();
  document.documentElement.dataset.ready = "true";
}

start();
