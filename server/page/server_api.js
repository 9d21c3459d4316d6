// The server's own API, and the key that it may ask for.
'use strict';

/** A failed request, as a sentence for people. */
class Refusal extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

let apiKey = remembered('sessionStorage', 'quire-key');

function setKey(key) {
  apiKey = remembered('sessionStorage', 'quire-key', key);
  byId('key').value = key;
}

async function request(path, options = {}) {
  const headers = {...options.headers};
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  let response;
  try {
    response = await fetch(path, {...options, headers, cache: 'no-store'});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refusal(0, 'The server cannot be reached. Is it still running?');
  }
  if (!response.ok) throw new Refusal(response.status, await inWords(response));
  return response;
}

async function inWords(response) {
  let said = '';
  try { said = (await response.json()).error.message ?? ''; } catch { /* not JSON: the status must do */ }
  const seconds = Number(response.headers.get('Retry-After'));
  switch (response.status) {
  case 401: return apiKey ? 'The server did not accept the API key.' : 'This server needs an API key.';
  case 429: return `The server is busy. Try again in ${seconds > 0 ? plural(seconds, 'second') : 'a moment'}. ${said}`;
  case 503: return said || 'The server is shutting down.';
  default: return said || `The server answered with status ${response.status}.`;
  }
}

/** Asks for the key; resolves to whether one was given. One dialog, however many ask at once. */
let asking = null;
function askForKey() {
  const dialog = byId('key-dialog');
  asking ??= new Promise(resolve => {
    let given = false;
    dialog.querySelector('form').onsubmit = event => {
      event.preventDefault();
      given = true;
      setKey(byId('key-field').value.trim());
      dialog.close();
    };
    byId('key-cancel').onclick = () => dialog.close();
    dialog.onclose = () => { asking = null; resolve(given); };
    byId('key-field').value = '';
    dialog.showModal();
  });
  return asking;
}

/** The JSON objects of a stream of server-sent events, until "[DONE]". */
async function* serverEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  try {
    for (;;) {
      const {value, done} = await reader.read();
      if (done) throw new Refusal(0, 'The connection ended before the answer was complete.');
      buffer += value;
      const lines = buffer.split(/\r?\n/);
      buffer = lines.pop(); // not complete yet
      for (const line of lines) {
        if (!line.startsWith('data:')) continue; // blank lines and comments that keep connections alive
        const data = line.slice(5).trim();
        if (data === '[DONE]') return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // an answer that nobody reads should not be computed
  }
}
