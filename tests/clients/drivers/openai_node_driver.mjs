// OpenAI's package for JavaScript: chats and responses.
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { BASE, CALL, FORM, MODEL, TEXT, parameters, printAll, weather } from "./said.mjs";

const client = new OpenAI({ baseURL: `${BASE}/v1`, apiKey: "none", maxRetries: 0 });
const user = (content) => [{ role: "user", content }];
const described = { name: "weather", description: "Weather", parameters };

async function tools(run) {
  const made = run({
    model: MODEL,
    messages: user(CALL),
    tools: [{ type: "function", function: { ...described, function: weather, parse: JSON.parse } }],
  });
  return await made.finalContent();
}

async function responsesTools() {
  const given = { model: MODEL, tools: [{ type: "function", strict: null, ...described }] };
  const input = user(CALL);
  const first = await client.responses.create({ ...given, input });
  input.push(...first.output);
  for (const item of first.output.filter((each) => each.type === "function_call")) {
    const output = weather(JSON.parse(item.arguments));
    input.push({ type: "function_call_output", call_id: item.call_id, output });
  }
  const stream = await client.responses.create({ ...given, input, stream: true });
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  return text;
}

await printAll({
  text: async () => {
    const made = await client.chat.completions.create({ model: MODEL, messages: user(TEXT) });
    return made.choices[0].message.content;
  },
  text_stream: async () => {
    const given = { model: MODEL, messages: user(TEXT), stream: true };
    let text = "";
    for await (const chunk of await client.chat.completions.create(given)) {
      text += chunk.choices[0]?.delta?.content ?? "";
    }
    return text;
  },
  tools: () => tools((body) => client.chat.completions.runTools(body)),
  tools_stream: () => tools((body) => client.chat.completions.runTools({ ...body, stream: true })),
  schema: async () => {
    const form = z.object({ city: z.string(), degrees: z.number().int() });
    const response_format = zodResponseFormat(form, "weather");
    const given = { model: MODEL, messages: user(FORM), response_format };
    return (await client.chat.completions.parse(given)).choices[0].message.parsed;
  },
  text_of_responses: async () => (await client.responses.create({ model: MODEL, input: TEXT })).output_text,
  tools_of_responses: responsesTools,
});
