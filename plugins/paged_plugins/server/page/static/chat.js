// The chat: a conversation, streamed, stopped when asked, with what the server says went wrong.

import { counted, element, events, newKey, request } from "/page/api.js";
import { Rendered } from "/page/markdown.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];

const OWN_ID = /(?:request )?'?chatcmpl-[\w-]{16,}'?/g; // says nothing to readers of the page

export class Chat {
  constructor() {
    const find = (id) => document.getElementById(id);
    [this.form, this.prompt, this.log, this.status] = ["chat-form", "prompt", "messages", "chat-status"].map(find);
    [this.send, this.stop, this.again, this.clear] = ["send", "stop", "again", "clear"].map(find);
    this.empty = this.log.firstElementChild;
    this.messages = [];
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.prompt.value);
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.running?.abort();
    });
    this.stop.addEventListener("click", () => this.running?.abort());
    this.again.addEventListener("click", () => this.askAgain());
    this.clear.addEventListener("click", () => this.forget());
    this.listModels();
  }

  async listModels() {
    let models = [];
    try {
      models = (await (await request("/v1/models")).json()).data;
    } catch (failure) {
      if (!failure.needsKey) return;
      await newKey();
      this.listModels();
      return;
    }
    const select = document.getElementById("p-model");
    select.replaceChildren(...models.map(({ id }) => new Option(id, id)));
    document.getElementById("model").textContent = models[0]?.id ?? "";
  }

  parameters() {
    const given = new FormData(this.form);
    const body = { model: given.get("model") ?? "" };
    for (const name of NUMBERS) if (given.get(name)) body[name] = Number(given.get(name));
    if (given.get("stop")) body.stop = given.get("stop");
    if (given.has("ignore_eos")) body.ignore_eos = true;
    const system = given.get("system")?.trim();
    return { body, system: system ? [{ role: "system", content: system }] : [] };
  }

  ask(text) {
    if (!text.trim() || this.running) return;
    this.prompt.value = "";
    this.add("user", text);
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  askAgain() {
    if (this.running) return;
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    if (this.log.lastElementChild?.matches(".assistant")) this.log.lastElementChild.remove();
    if (this.messages.length) this.answer();
  }

  forget() {
    this.running?.abort();
    this.messages = [];
    this.log.replaceChildren(this.empty);
    this.again.disabled = this.clear.disabled = true;
    this.prompt.focus();
  }

  add(role, text) {
    this.empty.remove();
    const message = element("article", `message ${role}`);
    message.append(element("h3", "", role === "user" ? "You" : "Model"), element("div", "text", text));
    this.log.append(message);
    this.log.scrollTop = this.log.scrollHeight;
    return message;
  }

  async answer() {
    const controller = (this.running = new AbortController());
    const message = this.add("assistant", "");
    message.setAttribute("aria-busy", "true");
    this.showRunning(true);
    const answer = { text: "", reasoning: "", finish: null, usage: null, started: performance.now(), first: null };
    try {
      await this.stream(controller.signal, message, answer);
    } catch (failure) {
      if (controller.signal.aborted) answer.finish = "stopped";
      else this.showError(message, failure);
    }
    answer.rendered?.flush();
    message.removeAttribute("aria-busy");
    if (answer.text) this.messages.push({ role: "assistant", content: answer.text });
    if (this.running === controller) this.running = null;
    this.showRunning(false);
    if (answer.finish) message.append(element("p", "meta", summary(answer)));
    this.follow();
    this.status.textContent = message.querySelector(".error")?.textContent ?? `Answered: ${answer.text}`;
  }

  async stream(signal, message, answer) {
    const { body, system } = this.parameters();
    const response = await request("/v1/chat/completions", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        ...body,
        messages: [...system, ...this.messages],
        stream: true,
        stream_options: { include_usage: true },
      }),
      signal,
    });
    const text = message.querySelector(".text");
    let thought;
    for await (const { data } of events(response)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      answer.usage = chunk.usage ?? answer.usage;
      const choice = chunk.choices?.[0];
      if (!choice) continue;
      answer.finish = choice.finish_reason ?? answer.finish;
      const { content, reasoning_content: reasoning } = choice.delta ?? {};
      if (content || reasoning) answer.first ??= performance.now();
      if (reasoning) {
        thought ??= message.insertBefore(element("div", "text reasoning"), text);
        thought.append(reasoning);
      }
      if (content) {
        answer.text += content;
        answer.rendered ??= new Rendered(text, (change) => this.follow(change));
        answer.rendered.show(answer.text);
      }
      this.follow();
    }
    throw new Error("the stream broke off before its end");
  }

  showError(message, failure) {
    const said = element("p", "error", failure.message.replace(OWN_ID, "the request"));
    said.setAttribute("role", "alert");
    message.append(said);
    if (failure.needsKey) newKey().then(() => this.askAgain());
  }

  showRunning(running) {
    this.stop.hidden = !running;
    this.send.disabled = running;
    this.again.disabled = running || !this.messages.length;
    this.clear.disabled = !this.messages.length;
    if (running) this.status.textContent = "The model answers.";
  }

  // Makes a change, and keeps the end in view unless the reader has scrolled away from it.
  follow(change = () => {}) {
    const { log } = this;
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 120;
    change();
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }
}

function summary({ finish, usage, started, first }) {
  const parts = [];
  const tokens = usage?.completion_tokens;
  if (tokens) {
    parts.push(counted(tokens, "token"));
    const seconds = (performance.now() - first) / 1000;
    if (tokens > 1 && seconds > 0) parts.push(`${((tokens - 1) / seconds).toFixed(1)} tokens/s over the answer`);
  }
  if (first) parts.push(`first after ${Math.round(first - started)} ms`);
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${cached} of ${counted(usage.prompt_tokens, "prompt token")} cached`);
  }
  parts.push({ stop: "ended by itself", length: "cut at its length", stopped: "stopped" }[finish] ?? finish);
  return parts.join(" · ");
}
