// Continue's adapters: chat as OpenAI, Anthropic and Ollama; fill in the middle as Codestral; prints one JSON line.
import { constructLlmApi } from '@continuedev/openai-adapters';

const root = process.argv[2];
const signal = new AbortController().signal;
const messages = [{ role: 'user', content: 'hello' }];
const configs = {
  openai: { provider: 'openai', apiKey: 'none', apiBase: `${root}/v1/` },
  anthropic: { provider: 'anthropic', apiKey: 'none', apiBase: `${root}/v1/` },
  ollama: { provider: 'ollama', apiBase: root },
};
const seen = {};
for (const [name, config] of Object.entries(configs)) {
  const api = constructLlmApi(config);
  let streamed = '';
  for await (const chunk of api.chatCompletionStream({ model: 'scripted', messages, stream: true, max_tokens: 100 }, signal)) {
    streamed += chunk.choices[0]?.delta?.content ?? '';
  }
  seen[name] = streamed;
}
const codestral = constructLlmApi({ provider: 'mistral', apiKey: 'none', apiBase: `${root}/v1/` });
let filled = '';
const place = { model: 'fulgur-60m', prompt: 'def add(a, b):\n    return ', suffix: '\n', max_tokens: 8, stream: true };
for await (const chunk of codestral.fimStream(place, signal)) filled += chunk.choices[0]?.delta?.content ?? '';
seen.filled = filled;
console.log(JSON.stringify(seen));
