// The last steps: prefill tokens upwards, decode tokens downwards, each on a scale of its own.

import { count, counted } from "/page/api.js";
import { colour, onThemeChange } from "/page/colours.js";

const HEIGHT = 132;
const MIDDLE = 76;
const BAR = 4;
const KEPT = 512;

export class Timeline {
  constructor() {
    this.canvas = document.getElementById("steps");
    this.info = document.getElementById("steps-info");
    this.pen = this.canvas.getContext("2d");
    this.steps = [];
    this.selected = -1; // counted from the newest one
    new ResizeObserver(() => this.layOut()).observe(document.getElementById("steps-box"));
    onThemeChange(() => this.schedule());
    this.canvas.addEventListener("pointermove", (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.select(Math.floor((box.right - event.clientX) / BAR));
    });
    this.canvas.addEventListener("pointerleave", () => this.select(-1));
    this.canvas.addEventListener("blur", () => this.select(-1));
    this.canvas.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: this.selected + 1, ArrowRight: Math.max(0, this.selected - 1), Escape: -1 }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.select(to);
    });
  }

  reset() { this.steps = []; }

  apply(steps) {
    if (!steps.length) return;
    this.steps.push(...steps);
    if (this.steps.length > KEPT) this.steps.splice(0, this.steps.length - KEPT);
    this.schedule();
  }

  layOut() {
    const width = this.canvas.parentElement.clientWidth - 16;
    if (width <= 0) return;
    const scale = window.devicePixelRatio || 1;
    this.width = width;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(HEIGHT * scale);
    this.canvas.style.height = `${HEIGHT}px`;
    this.pen.setTransform(scale, 0, 0, scale, 0, 0);
    this.schedule();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  select(index) {
    if (index >= this.steps.length) return;
    this.selected = index;
    this.schedule();
  }

  draw() {
    this.frame = undefined;
    const { pen, width } = this;
    if (!width) return;
    const shown = this.steps.slice(-Math.floor(width / BAR));
    const most = (place) => Math.max(1, ...shown.map((step) => step[place]));
    const prefill = most(2);
    const decode = most(3);
    pen.clearRect(0, 0, width, HEIGHT);
    shown.forEach((step, index) => {
      const x = width - (shown.length - index) * BAR;
      const up = (step[2] / prefill) * (MIDDLE - 18);
      const down = (step[3] / decode) * (HEIGHT - MIDDLE - 16);
      pen.globalAlpha = this.selected >= 0 && index !== shown.length - 1 - this.selected ? 0.35 : 1;
      pen.fillStyle = colour("--prefill");
      pen.fillRect(x, MIDDLE - up, BAR - 1, up);
      pen.fillStyle = colour("--decode");
      pen.fillRect(x, MIDDLE + 1, BAR - 1, down);
      if (step[4]) {
        pen.fillStyle = colour("--bad");
        pen.fillRect(x, 0, BAR - 1, HEIGHT);
      }
    });
    pen.globalAlpha = 1;
    pen.fillStyle = colour("--line");
    pen.fillRect(0, MIDDLE, width, 1);
    pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    pen.fillStyle = colour("--muted");
    if (shown.length) {
      pen.fillText(`prefill, most ${count(prefill)}`, 0, 11);
      pen.fillText(`decode, most ${count(decode)}`, 0, HEIGHT - 3);
    }
    this.describe();
  }

  describe() {
    const step = this.steps.at(-1 - Math.max(0, this.selected));
    if (!step) return;
    const [number, seconds, prefill, decode, preempted, running, waiting] = step;
    const text =
      `Step ${count(number)}: ${counted(prefill, "prefill token")}, ${counted(decode, "decode token")}, ` +
      `${(1000 * seconds).toFixed(1)} ms; ${running} running, ${waiting} waiting` +
      (preempted ? `, ${counted(preempted, "preemption")}` : "");
    // what changes by itself many times a second is not read out
    this.info.setAttribute("aria-live", this.selected >= 0 ? "polite" : "off");
    if (this.info.textContent !== text) this.info.textContent = text;
  }
}
