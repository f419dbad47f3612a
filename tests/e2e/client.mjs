// The official Node client against the server named in argv; prints one JSON line of what it saw.
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const client = new OpenAI({ baseURL: process.argv[2], apiKey: 'none', maxRetries: 0 });
const seen = {};

seen.text = (await client.responses.create({ model: 'scripted', input: 'hello' })).output_text;

const stream = client.responses.stream({ model: 'scripted', input: 'think' });
seen.kinds = [];
for await (const event of stream) seen.kinds.push(event.type);
seen.streamed = (await stream.finalResponse()).output_text;

const chat = await client.chat.completions.create({ model: 'scripted', messages: [{ role: 'user', content: 'hello' }] });
seen.chat = chat.choices[0].message.content;
seen.models = (await client.models.list()).data.map((model) => model.id);

seen.socket = await new Promise((resolve, reject) => {
  const events = [];
  const socket = new ResponsesWS(client);
  const finish = (error) => { socket.close(); error ? reject(error) : resolve(events); };
  setTimeout(() => finish(new Error(`timed out after ${JSON.stringify(events)}`)), 15000).unref();
  socket.on('error', (error) => finish(error));
  let steered = false;
  let ended = 0;
  socket.on('event', (event) => {
    events.push(event.type);
    if (event.type === 'response.output_text.delta' && !steered) {
      steered = true;
      socket.send({ type: 'response.steer', previous_response_id: socket.first, input: 'now turn', boundary: 'token' });
    }
    if (event.type === 'response.created' && !socket.first) socket.first = event.response.id;
    if (event.type === 'response.completed' || event.type === 'response.incomplete') ended += 1;
    if (ended === 2) { seen.turned = event.response.output[0].content[0].text; finish(); }
  });
  socket.send({ type: 'response.create', model: 'scripted', input: 'go long', store: false });
});
console.log(JSON.stringify(seen));
process.exit(0);
