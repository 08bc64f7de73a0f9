import Anthropic from "@anthropic-ai/sdk";
import { API_KEY, DESCRIPTION, INSTRUCTIONS, NAME, PARAMETERS, ROOT_URL, STREAMS, askEach, calculate } from "./task.mjs";

const client = new Anthropic({ baseURL: ROOT_URL, apiKey: API_KEY });
const history = [];

async function ask(question) {
  history.push({ role: "user", content: question });
  while (true) {
    const request = {
      model: "policy",
      max_tokens: 1000,
      system: INSTRUCTIONS,
      messages: history,
      tools: [{ name: NAME, description: DESCRIPTION, input_schema: PARAMETERS }],
    };
    const message = STREAMS
      ? await client.messages.stream(request).finalMessage()
      : await client.messages.create(request);
    history.push({ role: "assistant", content: message.content });
    const uses = message.content.filter((block) => block.type === "tool_use");
    if (!uses.length) return message.content.map((block) => block.text ?? "").join("");
    const content = uses.map((use) => ({ type: "tool_result", tool_use_id: use.id, content: calculate(use.input) }));
    history.push({ role: "user", content });
  }
}

await askEach(ask);
