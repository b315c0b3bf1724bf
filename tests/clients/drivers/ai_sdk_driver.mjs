// Vercel's AI SDK, with its provider for servers of OpenAI's form and those of OpenAI and Anthropic.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE, CALL, FORM, MODEL, TEXT, called, printAll, weather } from "./said.mjs";

const ANSWER = { city: "Paris", degrees: 21 };

const at = { baseURL: `${BASE}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({
  ...at,
  name: "paged",
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const models = {
  compatible: compatible(MODEL),
  responses: createOpenAI(at)(MODEL),
  chat: createOpenAI(at).chat(MODEL),
  anthropic: createAnthropic(at)(MODEL),
};
const tools = {
  weather: tool({
    description: "Weather",
    inputSchema: z.object({ city: z.string() }),
    execute: async (input) => weather(input),
  }),
};
const given = { maxRetries: 0, stopWhen: stepCountIs(3) };
const form = Output.object({ schema: z.object({ city: z.string(), degrees: z.number().int() }) });

// Anthropic's provider asks for a form by a tool, unless the model is one of Anthropic's.
const formOf = (model) => (model === models.anthropic ? called("json", ANSWER) : FORM);

async function streamed(options) {
  const errors = [];
  const made = streamText({ ...given, ...options, onError: ({ error }) => errors.push(error) });
  let text = "";
  for await (const part of made.textStream) text += part;
  if (errors.length) throw errors[0];
  return text;
}

async function same(hold) {
  const found = {};
  for (const [name, model] of Object.entries(models)) {
    try {
      found[name] = await hold(model);
    } catch (error) {
      found[name] = `${error} ${error.responseBody ?? error.cause ?? ""}`;
    }
  }
  const values = new Set(Object.values(found).map((each) => JSON.stringify(each)));
  return values.size === 1 ? Object.values(found)[0] : found;
}

await printAll({
  text: () => same(async (model) => (await generateText({ ...given, model, prompt: TEXT })).text),
  text_stream: () => same((model) => streamed({ model, prompt: TEXT })),
  tools: () =>
    same(async (model) => (await generateText({ ...given, model, tools, prompt: CALL })).text),
  tools_stream: () => same((model) => streamed({ model, tools, prompt: CALL })),
  schema: () =>
    same(async (model) => {
      const made = await generateText({ ...given, model, output: form, prompt: formOf(model) });
      return made.output;
    }),
  schema_beside_tools: () =>
    same(async (model) => {
      const prompt = formOf(model);
      const made = await generateText({ ...given, model, tools, output: form, prompt });
      return made.output;
    }),
});
