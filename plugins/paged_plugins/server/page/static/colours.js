// Colours for canvases: those of the style sheet as they are now, and one for each request.

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
const isDark = matchMedia("(prefers-color-scheme: dark)");
const listeners = [];
let known = new Map();

// The value of a custom property such as "--ink", resolved for the theme in force.
export function colour(name) {
  if (!known.has(name)) {
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (isDark.matches ? "dark" : "light");
}

// Neighbouring numbers get hues that are far apart: the golden angle lies between them. Where hues come
// close again, the lightness differs.
export function ownerColour(number) {
  const key = number % 360;
  if (!known.has(key)) {
    const hue = (key * 137.508) % 360;
    const lightness = (theme() === "dark" ? 74 : 58) + [0, 10, -10][Math.floor(key / 8) % 3];
    known.set(key, `oklch(${lightness}% 0.14 ${hue})`);
  }
  return known.get(key);
}

// A colour as a pixel of an ImageData that is seen as Uint32Array.
export function pixel(css) {
  const key = `pixel ${css}`;
  if (!known.has(key)) {
    const pen = new OffscreenCanvas(1, 1).getContext("2d");
    pen.fillStyle = css;
    pen.fillRect(0, 0, 1, 1);
    known.set(key, new Uint32Array(pen.getImageData(0, 0, 1, 1).data.buffer)[0]);
  }
  return known.get(key);
}

// A pixel of which a share of 0 to 1 lies over another one.
export function mix(over, under, share) {
  let mixed = 0xff;
  for (const shift of [16, 8, 0]) {
    const [a, b] = [(over >>> shift) & 0xff, (under >>> shift) & 0xff];
    mixed = (mixed << 8) | Math.round(b + (a - b) * share);
  }
  return mixed >>> 0;
}

export function onThemeChange(listener) { listeners.push(listener); }

export function themeChanged() {
  known = new Map();
  for (const listener of listeners) listener();
}
isDark.addEventListener("change", themeChanged);
