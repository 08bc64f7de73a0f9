// An agent in JavaScript, with the npm package `openai`. No line of it is about training.
//
//   npm install openai
//   areal-sdk train --command "node agent.mjs" --tasks sums.jsonl
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const { data, model } = JSON.parse(readFileSync(0, "utf8")); // stdin
const client = new OpenAI(); // reads OPENAI_BASE_URL and OPENAI_API_KEY
const completion = await client.chat.completions.create({
  model,
  messages: [{ role: "user", content: data.question }],
});
const said = completion.choices[0].message.content ?? "";
console.log(JSON.stringify({ reward: Number(said.includes(data.answer)) }));
