// Requests that wait or run, with their progress; a row each, changed in place.

import { count, counted, element } from "/page/api.js";
import { onThemeChange, ownerColour } from "/page/colours.js";

const MAX_ROWS = 24;
const ORDER = { running: 0, swapped: 1, waiting: 2 };

export class Requests {
  constructor() {
    this.body = document.getElementById("requests");
    this.none = this.body.querySelector(".none");
    this.more = document.getElementById("requests-more");
    this.known = new Map(); // by number: what the engine says
    this.rows = new Map(); // by number: what is shown
    onThemeChange(() => {
      for (const [number, row] of this.rows) row.chip.style.background = ownerColour(number);
    });
  }

  reset() { this.known.clear(); }

  // Takes rows that changed, numbers of requests that ended, and how many there are in all.
  apply(changed, ended, total) {
    for (const number of ended) this.known.delete(number);
    for (const row of changed) this.known.set(row[0], row);
    const order = [...this.known.values()].sort((a, b) => ORDER[a[2]] - ORDER[b[2]] || a[0] - b[0]);
    const shown = order.slice(0, MAX_ROWS);
    const numbers = new Set(shown.map((row) => row[0]));
    for (const [number, row] of this.rows) {
      if (!numbers.has(number)) {
        row.line.remove();
        this.rows.delete(number);
      }
    }
    shown.forEach((values, index) => {
      const row = this.rows.get(values[0]) ?? this.add(values);
      this.fill(row, values);
      const there = this.body.children[index];
      if (there !== row.line) this.body.insertBefore(row.line, there ?? null);
    });
    this.none.hidden = shown.length > 0;
    this.more.hidden = total <= shown.length;
    this.more.textContent = `and ${count(total - shown.length)} more`;
  }

  name(number) { return this.known.get(number)?.[1] ?? `number ${number}`; }

  add([number, id]) {
    const cell = (name) => element("td", name);
    const row = { line: element("tr"), state: cell(), prompt: cell("num"), made: cell("num"), blocks: cell("num") };
    const name = cell();
    row.chip = element("i", "chip");
    row.chip.style.background = ownerColour(number);
    name.append(row.chip, element("span", "id", id.length > 18 ? `…${id.slice(-12)}` : id));
    name.title = id;
    row.bar = element("div", "progress");
    row.bar.setAttribute("role", "progressbar");
    row.bar.setAttribute("aria-label", `Progress of ${id}`);
    row.done = element("span", "done");
    row.generated = element("span", "made");
    row.mark = element("i");
    row.bar.append(row.done, row.generated, row.mark);
    const progress = cell();
    progress.append(row.bar);
    row.line.append(name, row.state, progress, row.prompt, row.made, row.blocks);
    this.rows.set(number, row);
    return row;
  }

  fill(row, [, , state, prompt, computed, generated, most, cached, blocks, hostBlocks, preemptions]) {
    const total = Math.max(1, prompt + most);
    const done = Math.min(computed, prompt);
    row.state.textContent = state;
    row.state.title = preemptions ? `preempted ${counted(preemptions, "time")}` : "";
    row.prompt.textContent = `${count(done)}/${count(prompt)}`;
    row.prompt.title = `${counted(cached, "token")} from the cache`;
    row.made.textContent = `${count(generated)}/${count(most)}`;
    row.blocks.textContent = hostBlocks ? `${blocks}+${hostBlocks}` : `${blocks}`;
    row.done.style.transform = `scaleX(${done / total})`;
    row.generated.style.left = `${(100 * prompt) / total}%`;
    row.generated.style.transform = `scaleX(${generated / total})`;
    row.mark.style.left = `${(100 * prompt) / total}%`;
    row.bar.setAttribute("aria-valuemax", total);
    row.bar.setAttribute("aria-valuenow", done + generated);
    row.bar.setAttribute("aria-valuetext", `${done} of ${prompt} prompt tokens, ${generated} generated`);
  }
}
