// The Vercel AI SDK by three doors: a tool loop and a stream each; prints one JSON line.
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { z } from 'zod';

const baseURL = `${process.argv[2]}/v1`;
const models = {
  responses: createOpenAI({ baseURL, apiKey: 'none' })('scripted'),
  chat: createOpenAICompatible({ name: 'fulgur', baseURL }).chatModel('scripted'),
  anthropic: createAnthropic({ baseURL, apiKey: 'none' })('scripted'),
};
const asked = [];
const weather = tool({
  description: 'The weather.',
  inputSchema: z.object({ city: z.string(), days: z.number() }),
  execute: async (input) => { asked.push(input.city); return 'rain'; },
});
const seen = {};
for (const [name, model] of Object.entries(models)) {
  const told = await generateText({ model, prompt: 'the weather?', tools: { weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
  const stream = streamText({ model, prompt: 'hello', maxRetries: 0 });
  let streamed = '';
  for await (const piece of stream.textStream) streamed += piece;
  seen[name] = [told.text, streamed];
}
const completion = createOpenAICompatible({ name: 'fulgur', baseURL }).completionModel('scripted');
seen.completion = (await generateText({ model: completion, prompt: 'hello', maxRetries: 0 })).text.includes('hello');
seen.asked = asked;
console.log(JSON.stringify(seen));
