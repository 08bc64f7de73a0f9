// Vercel's AI SDK with the provider that the endpoint belongs to.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { API_KEY, BASE_URL, DESCRIPTION, ENDPOINT, INSTRUCTIONS, PARAMETERS, STREAMS, askEach, calculate } from "./task.mjs";

const PROVIDER = process.env.PROVIDER;
const options = { baseURL: BASE_URL, apiKey: API_KEY };
const model = {
  "openai-compatible chat": () => createOpenAICompatible({ name: "areal", ...options })("policy"),
  "openai chat": () => createOpenAI(options).chat("policy"),
  "openai responses": () => createOpenAI(options).responses("policy"),
  "anthropic messages": () => createAnthropic(options)("policy"),
}[`${PROVIDER} ${ENDPOINT}`]();
const tools = {
  calculator: tool({ description: DESCRIPTION, inputSchema: jsonSchema(PARAMETERS), execute: calculate }),
};
const history = [];

async function ask(question) {
  history.push({ role: "user", content: question });
  const request = { model, maxOutputTokens: 1000, system: INSTRUCTIONS, messages: history, tools, stopWhen: stepCountIs(6) };
  if (!STREAMS) {
    const { text, responseMessages } = await generateText(request);
    history.push(...responseMessages);
    return text;
  }
  const result = streamText({ ...request, onError: ({ error }) => { throw error; } });
  await result.consumeStream();
  history.push(...(await result.responseMessages));
  return result.text;
}

await askEach(ask);
