// Requests to the server that the page is from: the key, errors as the server says them, event streams.

const KEY = "paged_core.key";
const form = document.getElementById("key-form");
let waiting = [];

export class ApiError extends Error {}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const field = document.getElementById("key");
  sessionStorage.setItem(KEY, field.value);
  field.value = "";
  form.hidden = true;
  const resumed = waiting;
  waiting = [];
  for (const resume of resumed) resume();
});

// Returns once a key was entered.
export function newKey() {
  form.hidden = false;
  document.getElementById("key").focus();
  return new Promise((resolve) => waiting.push(resolve));
}

// Fetches, and throws what the server says is wrong; `needsKey` is set on a 401.
export async function request(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.ok) return response;
  let said = `${response.status} ${response.statusText}`;
  try {
    const { error } = await response.json();
    if (error?.message) said = error.code ? `${error.message} (${error.code})` : error.message;
  } catch { /* the body is no JSON: the status has to do */ }
  const failure = new ApiError(said);
  failure.needsKey = response.status === 401;
  throw failure;
}

// Yields {event, id, data} of a server-sent stream; `onPing` is called for whatever arrives.
export async function* events(response, onPing = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let found = { event: "message", data: [] };
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    onPing();
    const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (found.data.length) yield { ...found, data: found.data.join("\n") };
        found = { event: "message", data: [] };
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "data") found.data.push(text);
      else if (field === "event") found.event = text;
      else if (field === "id") found.id = text;
    }
  }
}

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const numbers = new Intl.NumberFormat("en");
export const count = (number) => numbers.format(number);
export const counted = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
