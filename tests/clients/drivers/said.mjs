// Base address, texts that the model is told to say, and what a driver prints: see said.py.

export const BASE = process.env.BASE;
export const MODEL = "told";
export const say = (text) =>
  `[say:${Buffer.from(text).toString("base64").replaceAll("+", "-").replaceAll("/", "_")}]`;
const asked = "How warm is it in Paris?";
const json = (value) => JSON.stringify(value).replaceAll('":', '": ').replaceAll(',"', ', "');
export const called = (name, given) =>
  `${asked} ${say(`<tool_call>\n${json({ name, arguments: given })}\n</tool_call>`)}`;
export const TEXT = say("Blöcke sind Seiten. 😀");
export const FORM = `${asked} ${say('{"city": "Paris", "degrees": 21}')}`;
export const CALL = called("weather", { city: "Paris" });
export const weather = ({ city }) => `21 degrees in ${city}. ${say("It is warm.")}`;
export const parameters = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
};

export async function printAll(conversations) {
  const found = {};
  for (const [name, hold] of Object.entries(conversations)) {
    try {
      found[name] = await hold();
    } catch (error) {
      found[name] = `${error.stack} ${error.responseBody ?? ""}`;
    }
  }
  console.log("\n" + JSON.stringify(found));
}
