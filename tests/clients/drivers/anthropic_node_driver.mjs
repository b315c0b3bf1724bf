// Anthropic's package for JavaScript.
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { BASE, CALL, MODEL, TEXT, parameters, printAll, weather } from "./said.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: "none", maxRetries: 0 });
const given = { model: MODEL, max_tokens: 400 };
const user = (content) => ({ role: "user", content });

async function tools(ask) {
  const messages = [user(CALL)];
  const tools = [{ name: "weather", description: "Weather", input_schema: parameters }];
  const first = await ask({ ...given, messages, tools });
  const results = first.content
    .filter((block) => block.type === "tool_use")
    .map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: weather(input) }));
  messages.push({ role: "assistant", content: first.content }, user(results));
  return (await ask({ ...given, messages, tools })).content[0].text;
}

await printAll({
  text: async () =>
    (await client.messages.create({ ...given, messages: [user(TEXT)] })).content[0].text,
  text_stream: () => client.messages.stream({ ...given, messages: [user(TEXT)] }).finalText(),
  tools: () => tools((body) => client.messages.create(body)),
  tools_stream: () => tools((body) => client.messages.stream(body).finalMessage()),
  tools_run: async () => {
    const tool = betaTool({
      name: "weather",
      description: "Weather",
      inputSchema: parameters,
      run: weather,
    });
    const body = { ...given, messages: [user(CALL)], tools: [tool] };
    return (await client.beta.messages.toolRunner(body)).content[0].text;
  },
});
