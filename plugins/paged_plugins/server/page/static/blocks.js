// The map of blocks: a cell each, of which only those that changed are drawn. They are filled as pixels,
// which takes a third of the time that rectangles of the canvas take.

import { count, counted } from "/page/api.js";
import { colour, mix, onThemeChange, ownerColour, pixel } from "/page/colours.js";

const PITCHES = [18, 16, 14, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3];
const MAX_HEIGHT = 330;
const GAP = 12; // between the blocks of the device and those of the host
const FLASH = 700; // milliseconds for which a hit is shown
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class BlockMap {
  constructor(requestOf) {
    this.canvas = document.getElementById("map");
    this.info = document.getElementById("map-info");
    this.requestOf = requestOf;
    this.pen = this.canvas.getContext("2d");
    this.counts = {};
    this.labels = new Map(
      [...document.querySelectorAll("#legend [data-kind]")].map((each) => [each.dataset.kind, each]),
    );
    this.selected = -1;
    this.owner = -1; // whose blocks stand out
    this.reset({ num_blocks: 0, num_cells: 0, num_host_cells: 0, block_size: 1, num_host_blocks: 0 });
    new ResizeObserver(() => this.layOut()).observe(document.getElementById("map-box"));
    onThemeChange(() => this.markAll());
    this.canvas.addEventListener("pointermove", (event) => this.select(this.cellAt(event)));
    this.canvas.addEventListener("pointerleave", () => this.select(-1));
    this.canvas.addEventListener("blur", () => this.select(-1));
    this.canvas.addEventListener("focus", () => {
      if (this.selected < 0 && this.canvas.matches(":focus-visible")) this.select(0);
    });
    this.canvas.addEventListener("keydown", (event) => this.onKey(event));
  }

  reset(engine) {
    this.engine = engine;
    this.size = engine.num_cells + engine.num_host_cells;
    this.cells = new Array(this.size);
    this.flashes = new Map(); // by cell: when it was hit
    this.dirty = new Set();
    this.counts = { held: 0, shared: 0, cached: 0, pinned: 0, host: 0, free: this.size };
    document.getElementById("legend-host").hidden = !engine.num_host_cells;
    this.select(-1);
    this.layOut();
    this.showCounts();
  }

  // Takes [block, request, place, references, cached, hits] of blocks that changed.
  apply(changes) {
    const now = performance.now();
    for (const change of changes) {
      const [block, owner, , , , hits] = change;
      const before = this.cells[block];
      this.counts[this.kind(block)] -= 1;
      this.cells[block] = change;
      this.counts[this.kind(block)] += 1;
      if (before && hits > before[5] && owner >= 0 && !calm.matches) this.flashes.set(block, now);
      this.dirty.add(block);
    }
    if (!changes.length) return;
    this.schedule();
    this.showCounts();
    if (this.selected >= 0) this.describe();
  }

  kind(block) {
    const cell = this.cells[block];
    if (!cell) return "free";
    const [, owner, , references, cached] = cell;
    if (block >= this.engine.num_cells) return owner >= 0 ? "host" : "free";
    if (owner >= 0) return references > 1 ? "shared" : "held";
    if (references > 0) return "pinned";
    return cached ? "cached" : "free";
  }

  showCounts() {
    for (const [kind, label] of this.labels) {
      const text = count(this.counts[kind]);
      if (label.textContent !== text) label.textContent = text;
    }
  }

  // ---------------------------------------------------------------- where cells are

  layOut() {
    const width = this.canvas.parentElement.clientWidth - 16;
    if (width <= 0) return;
    const { num_cells, num_host_cells } = this.engine;
    const fits = (pitch) => {
      const columns = Math.max(1, Math.floor(width / pitch));
      return (Math.ceil(num_cells / columns) + Math.ceil(num_host_cells / columns)) * pitch <= MAX_HEIGHT;
    };
    this.pitch = PITCHES.find(fits) ?? PITCHES.at(-1);
    this.columns = Math.max(1, Math.floor(width / this.pitch));
    this.rows = Math.ceil(num_cells / this.columns);
    const hostRows = Math.ceil(num_host_cells / this.columns);
    const height = Math.max(1, this.rows + hostRows) * this.pitch + (hostRows ? GAP : 0);
    this.scale = Math.max(1, Math.round(window.devicePixelRatio || 1)); // whole pixels: sharp edges
    this.canvas.width = this.columns * this.pitch * this.scale;
    this.canvas.height = height * this.scale;
    this.canvas.style.width = `${this.columns * this.pitch}px`;
    this.canvas.style.height = `${height}px`;
    this.image = this.pen.createImageData(this.canvas.width, this.canvas.height);
    this.pixels = new Uint32Array(this.image.data.buffer);
    this.markAll();
  }

  place(block) {
    const host = block >= this.engine.num_cells;
    const at = host ? block - this.engine.num_cells : block;
    const row = Math.floor(at / this.columns) + (host ? this.rows : 0);
    return [(at % this.columns) * this.pitch, row * this.pitch + (host ? GAP : 0)];
  }

  cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.pitch);
    let y = event.clientY - box.top;
    if (column < 0 || column >= this.columns || y < 0) return -1;
    const { num_cells } = this.engine;
    if (y < this.rows * this.pitch) {
      const block = Math.floor(y / this.pitch) * this.columns + column;
      return block < num_cells ? block : -1;
    }
    y -= this.rows * this.pitch + GAP;
    const block = num_cells + Math.floor(y / this.pitch) * this.columns + column;
    return y >= 0 && block < this.size ? block : -1;
  }

  // ---------------------------------------------------------------- drawing

  markAll() {
    for (let block = 0; block < this.size; block += 1) this.dirty.add(block);
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame((now) => this.draw(now));
  }

  draw(now) {
    this.frame = undefined;
    if (!this.image) return;
    const shades = Object.fromEntries(
      ["sunk", "cell-free", "cell-idle", "cell-pinned", "ink"].map((name) => [name, pixel(colour(`--${name}`))]),
    );
    let [top, bottom] = [Infinity, 0];
    for (const block of this.dirty) {
      const y = this.drawCell(block, now, shades);
      top = Math.min(top, y);
      bottom = Math.max(bottom, y + this.pitch);
    }
    this.dirty.clear();
    if (bottom) {
      const { scale } = this;
      this.pen.putImageData(this.image, 0, 0, 0, top * scale, this.canvas.width, (bottom - top) * scale);
    }
    for (const [block, since] of this.flashes) {
      if (now - since > FLASH) this.flashes.delete(block);
      this.dirty.add(block);
    }
    if (this.dirty.size) this.schedule();
  }

  // Draws one cell and returns where it is from the top.
  drawCell(block, now, shades) {
    const [x, y] = this.place(block);
    const side = this.pitch > 6 ? this.pitch - 2 : this.pitch - 1;
    const kind = this.kind(block);
    const owner = this.cells[block]?.[1] ?? -1;
    let shade = shades["cell-free"];
    if (kind === "cached") shade = shades["cell-idle"];
    else if (kind === "pinned") shade = shades["cell-pinned"];
    else if (kind !== "free") shade = pixel(ownerColour(owner));
    if (this.owner >= 0 && owner !== this.owner) shade = mix(shade, shades.sunk, 0.3);
    const flash = this.flashes.get(block);
    if (flash !== undefined) shade = mix(shades.ink, shade, Math.max(0, 1 - (now - flash) / FLASH));
    this.fill(x, y, side, shade);
    if (kind === "cached") this.fill(x + 1, y + 1, side - 2, shades.sunk);
    if (kind === "shared" || kind === "host") {
      const inset = Math.max(1, Math.round(side * (kind === "shared" ? 0.32 : 0.22)));
      this.fill(x + inset, y + inset, side - 2 * inset, shades.sunk);
    }
    if (block === this.selected) {
      for (let edge = 0; edge < 2; edge += 1) this.frameOf(x + edge, y + edge, side - 2 * edge, shades.ink);
    }
    return y;
  }

  fill(x, y, side, shade, height = side) {
    const { pixels, scale } = this;
    const width = this.canvas.width;
    for (let row = y * scale; row < (y + height) * scale; row += 1) {
      pixels.fill(shade, row * width + x * scale, row * width + (x + side) * scale);
    }
  }

  frameOf(x, y, side, shade) {
    this.fill(x, y, side, shade, 1);
    this.fill(x, y + side - 1, side, shade, 1);
    for (let row = 1; row < side - 1; row += 1) {
      this.fill(x, y + row, 1, shade);
      this.fill(x + side - 1, y + row, 1, shade);
    }
  }

  // ---------------------------------------------------------------- inspection

  select(block) {
    if (block === this.selected) return;
    for (const each of [block, this.selected]) if (each >= 0) this.dirty.add(each);
    this.selected = block;
    this.describe();
    this.schedule();
  }

  onKey(event) {
    const at = this.selected;
    const steps = {
      ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - this.columns, ArrowDown: at + this.columns,
      Home: 0, End: this.size - 1, Escape: -1,
    };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const next = steps[event.key];
    if (event.key === "Escape" || (next >= 0 && next < this.size)) this.select(next);
  }

  describe() {
    const block = this.selected;
    const owner = block < 0 ? -1 : (this.cells[block]?.[1] ?? -1);
    if (owner !== this.owner) {
      this.owner = owner;
      this.markAll();
    }
    const text = block < 0 ? "Point at a block, or move with the arrow keys, to see whose it is." : this.say(block);
    if (this.info.textContent !== text) this.info.textContent = text;
  }

  say(block) {
    const { num_cells, block_size } = this.engine;
    const kind = this.kind(block);
    const name = kind === "host" || block >= num_cells ? `Host block ${block - num_cells}` : `Block ${block}`;
    const [, owner, place, references, cached, hits] = this.cells[block] ?? [block, -1, 0, 0, false, 0];
    if (kind === "free") return `${name} is empty.`;
    const found = cached ? `, cached, ${counted(hits, "hit")}` : "";
    if (kind === "cached") return `${name} is idle${found}.`;
    if (kind === "pinned") return `${name} belongs to a pinned prefix${found}.`;
    const first = place * block_size;
    const others = references > 1 ? `, shared by ${references}` : "";
    return `${name}: request ${this.requestOf(owner)}, tokens ${first}–${first + block_size - 1}${others}${found}.`;
  }
}
