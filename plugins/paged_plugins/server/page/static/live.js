// The live view: one stream of differences, taken up again where it broke off.

import { count, counted, events, newKey, request } from "/page/api.js";
import { BlockMap } from "/page/blocks.js";
import { Requests } from "/page/requests.js";
import { Timeline } from "/page/timeline.js";

const SILENCE = 45_000; // milliseconds without a ping after which a connection counts as dead
const WINDOW = 3_000; // milliseconds that rates are taken over
const show = (id, text) => {
  const field = document.getElementById(id);
  if (field.textContent !== text) field.textContent = text;
};

export class LiveView {
  constructor() {
    this.requests = new Requests();
    this.blocks = new BlockMap((number) => this.requests.name(number));
    this.timeline = new Timeline();
    this.cursor = "";
    this.samples = [];
    this.numPrefilled = 0;
    this.engine = null;
    this.totals = null;
    document.addEventListener("visibilitychange", () => this.lookOrLeave());
    setInterval(() => this.showRates(), 500);
    this.lookOrLeave();
  }

  // While the page is hidden, the engine need not be asked.
  lookOrLeave() {
    if (document.hidden) this.connection?.abort();
    else if (!this.connection || this.connection.signal.aborted) this.look();
  }

  async look() {
    const connection = (this.connection = new AbortController());
    let pause = 500;
    while (!connection.signal.aborted) {
      try {
        await this.follow(connection.signal, () => { pause = 500; });
      } catch (failure) {
        if (connection.signal.aborted) return;
        if (failure.needsKey) {
          this.showState("locked", "an API key is needed");
          await newKey();
          continue;
        }
        this.showState("unreachable", String(failure.message));
      }
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(8_000, 2 * pause);
    }
  }

  async follow(stop, onEvent) {
    const silent = new AbortController();
    let alarm;
    const heard = () => {
      clearTimeout(alarm);
      alarm = setTimeout(() => silent.abort(new Error("the server is silent")), SILENCE);
    };
    heard();
    try {
      const response = await request(`/live/events${location.search}`, {
        headers: this.cursor ? { "Last-Event-ID": this.cursor } : {},
        signal: AbortSignal.any([stop, silent.signal]),
      });
      for await (const event of events(response, heard)) {
        onEvent();
        this.cursor = event.id;
        this.apply(JSON.parse(event.data));
      }
    } finally {
      clearTimeout(alarm);
    }
  }

  apply({ state, reason, view, number = 0, engines = 1 }) {
    this.which = engines > 1 ? `engine ${number} of ${engines} (?engine=${(number + 1) % engines} shows the next)` : "";
    this.showState(state, reason);
    if (!view) return;
    if (view.whole) {
      this.engine = view.engine;
      show("map-title", `Blocks of the cache, ${counted(view.engine.block_size, "token")} each`);
      this.blocks.reset(view.engine);
      this.requests.reset();
      this.timeline.reset();
      this.samples = [];
    }
    const { totals } = view;
    this.totals = totals;
    this.blocks.apply(view.cells);
    this.requests.apply(view.requests, view.ended, totals.running + totals.waiting + totals.swapped);
    this.timeline.apply(view.steps);
    for (const step of view.steps) this.numPrefilled += step[2];
    this.showTotals();
    this.showRates();
  }

  showState(state, reason) {
    const field = document.getElementById("state");
    field.dataset.state = state;
    show("state", state);
    field.title = reason ?? "";
    const { num_blocks = 0, num_cells = 0 } = this.engine ?? {};
    const part = num_blocks > num_cells ? `the first ${count(num_cells)} of ${counted(num_blocks, "block")}` : "";
    show("engine-note", [this.which, reason ?? part].filter(Boolean).join(": "));
  }

  showTotals() {
    const { totals, engine } = this;
    const used = engine.num_blocks - totals.free_blocks;
    show("s-running", count(totals.running));
    show("s-waiting", `${count(totals.waiting)} waiting` + (totals.swapped ? `, ${count(totals.swapped)} swapped` : ""));
    show("s-used", count(used));
    show("s-blocks", `of ${count(engine.num_blocks)}`);
    const share = totals.prompt_tokens ? (100 * totals.cached_tokens) / totals.prompt_tokens : NaN;
    show("s-hits", Number.isNaN(share) ? "–" : `${share.toFixed(share < 10 ? 1 : 0)}%`);
    show("s-preempted", count(totals.preemptions));
    show("s-evicted", counted(totals.evictions, "eviction"));
  }

  showRates() {
    if (!this.totals) return;
    const now = performance.now();
    this.samples.push([now, this.totals.generated_tokens, this.numPrefilled]);
    while (this.samples.length > 2 && this.samples[1][0] < now - WINDOW) this.samples.shift();
    const [since, generated, prefilled] = this.samples[0];
    const seconds = Math.max(0.5, (now - since) / 1000);
    const rate = (tokens) => count(Math.round(tokens / seconds));
    show("s-generated", rate(this.totals.generated_tokens - generated));
    show("s-prefilled", rate(this.numPrefilled - prefilled));
  }
}
