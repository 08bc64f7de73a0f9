// The task of task.py for clients in JavaScript: the same questions, tool and check.
export const BASE_URL = process.env.BASE_URL, API_KEY = process.env.API_KEY;
// Anthropic's own client adds /v1 itself.
export const ROOT_URL = BASE_URL.replace(/\/v1$/, "");
export const [ENDPOINT, MODE] = process.argv.slice(2);
export const STREAMS = MODE === "streamed";

export const INSTRUCTIONS = "Be exact.";
const QUESTIONS = ["What is 1 + 1 + 1?", "And 9?"];
const NUM_CALLS = Number(process.env.NUM_CALLS);
export const NAME = "calculator", DESCRIPTION = "Evaluate an arithmetic expression.";
export const PARAMETERS = {
  type: "object",
  properties: { expression: { type: "string" }, digits: { type: "number" } },
  required: ["expression"],
};

let numResults = 0;

export function calculate({ expression }) {
  numResults += 1;
  return `RESULT-${numResults} of ${expression}`;
}

// Ends with an error unless every question was answered after all of its calls.
export async function askEach(ask) {
  const answers = [];
  for (const question of QUESTIONS) answers.push(await ask(question));
  if (numResults !== NUM_CALLS || answers.some((answer) => !(answer ?? "").includes("answer is"))) {
    console.error(`${numResults} calls, answers ${JSON.stringify(answers)}`);
    process.exit(1);
  }
}
