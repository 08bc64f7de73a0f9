import { ChatAnthropic } from "@langchain/anthropic";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent, tool } from "langchain";
import { API_KEY, BASE_URL, DESCRIPTION, ENDPOINT, INSTRUCTIONS, NAME, PARAMETERS, ROOT_URL, STREAMS, askEach, calculate } from "./task.mjs";

const model = ENDPOINT === "messages"
  ? new ChatAnthropic({ model: "policy", apiKey: API_KEY, anthropicApiUrl: ROOT_URL })
  : new ChatOpenAI({
      model: "policy",
      apiKey: API_KEY,
      configuration: { baseURL: BASE_URL },
      useResponsesApi: ENDPOINT === "responses",
    });
const calculator = tool(calculate, { name: NAME, description: DESCRIPTION, schema: PARAMETERS });
const agent = createAgent({ model, tools: [calculator], systemPrompt: INSTRUCTIONS });
let history = [];

async function ask(question) {
  const said = { messages: [...history, { role: "user", content: question }] };
  history = STREAMS ? await streamed(said) : (await agent.invoke(said)).messages;
  return history.at(-1).text;
}

// Not with `streaming: true`: then the client fetches a table of tokens from the internet.
async function streamed(said) {
  let messages;
  for await (const [mode, value] of await agent.stream(said, { streamMode: ["messages", "values"] })) {
    if (mode === "values") messages = value.messages;
  }
  return messages;
}

await askEach(ask);
