import OpenAI from "openai";
import { API_KEY, BASE_URL, DESCRIPTION, ENDPOINT, INSTRUCTIONS, NAME, PARAMETERS, STREAMS, askEach, calculate } from "./task.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: API_KEY });
const FUNCTION = { name: NAME, description: DESCRIPTION, parameters: PARAMETERS };
const history = ENDPOINT === "chat" ? [{ role: "developer", content: INSTRUCTIONS }] : [];

async function chat(question) {
  history.push({ role: "user", content: question });
  while (true) {
    const request = { model: "policy", messages: history, tools: [{ type: "function", function: FUNCTION }] };
    const message = STREAMS
      ? await client.chat.completions.stream(request).finalMessage()
      : (await client.chat.completions.create(request)).choices[0].message;
    history.push(message);
    if (!message.tool_calls?.length) return message.content;
    for (const call of message.tool_calls) {
      const content = calculate(JSON.parse(call.function.arguments));
      history.push({ role: "tool", tool_call_id: call.id, content });
    }
  }
}

async function responses(question) {
  history.push({ role: "user", content: question });
  while (true) {
    const request = {
      model: "policy",
      input: history,
      instructions: INSTRUCTIONS,
      tools: [{ type: "function", strict: false, ...FUNCTION }],
      store: false,
    };
    const response = STREAMS
      ? await client.responses.stream(request).finalResponse()
      : await client.responses.create(request);
    history.push(...response.output);
    const calls = response.output.filter((item) => item.type === "function_call");
    if (!calls.length) return response.output_text;
    for (const call of calls) {
      const output = calculate(JSON.parse(call.arguments));
      history.push({ type: "function_call_output", call_id: call.call_id, output });
    }
  }
}

await askEach({ chat, responses }[ENDPOINT]);
