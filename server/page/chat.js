// The chat.
'use strict';

const chat = {
  turns: [],       // {question, answer, article, ...}: a question and what the model said to it
  running: null,   // AbortController of the answer that streams now
  model: 'default',
};

/** What the request tells the model: earlier turns that got an answer, and the last question. */
function messagesFor(turn) {
  const messages = [], system = byId('system').value.trim();
  if (system) messages.push({role: 'system', content: system});
  for (const earlier of chat.turns) {
    if (earlier === turn) break;
    if (!earlier.answer) continue; // failed or stopped at once: many templates want strict alternation
    messages.push({role: 'user', content: earlier.question}, {role: 'assistant', content: earlier.answer});
  }
  messages.push({role: 'user', content: turn.question});
  return messages;
}

function bodyFor(turn) {
  const body = {model: chat.model, messages: messagesFor(turn), stream: true, stream_options: {include_usage: true}};
  const temperature = byId('temperature').valueAsNumber, limit = byId('max-tokens').valueAsNumber;
  if (!Number.isNaN(temperature)) body.temperature = temperature;
  if (!Number.isNaN(limit)) body.max_tokens = limit;
  if (byId('codec').value) body.kv = byId('codec').value;
  return body;
}

/** Runs a step that scrolls along with the answer, unless the reader has scrolled up. */
function followingEnd(step) {
  const box = byId('turns'), atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
  step();
  if (atEnd) box.scrollTop = box.scrollHeight;
}

function ask(question) {
  byId('welcome').hidden = true;
  const turn = {question, answer: ''};
  turn.text = make('div', {className: 'text'});
  turn.figures = make('span', {className: 'figures number'});
  turn.foot = make('div', {className: 'foot'}, turn.figures);
  const title = textContent => make('h2', {className: 'unseen', textContent}); // for screen readers
  turn.article = make('article', {}, title('You'), make('p', {className: 'question', textContent: question}),
    title('Model'), turn.text, turn.foot);
  for (const earlier of chat.turns) earlier.foot.querySelector('.retry')?.remove(); // only the last can be asked again
  chat.turns.push(turn);
  byId('turns').append(turn.article);
  byId('turns').scrollTop = byId('turns').scrollHeight;
  answer(turn);
}

/** Streams the answer to a turn into the page. */
async function answer(turn) {
  const running = chat.running = new AbortController();
  Object.assign(turn, {answer: '', usage: null, finish: '', fault: null, pieces: 0});
  Object.assign(turn, {began: performance.now(), first: 0, last: 0}); // when tokens came
  turn.article.querySelector('.fault')?.remove();
  turn.article.classList.add('writing');
  turn.article.setAttribute('aria-busy', 'true');
  turn.foot.replaceChildren(turn.figures);
  put(turn.figures, 'waiting for the first token');
  renderMarkdown(turn.text, '');
  showRunning(true);
  const speak = speaker();
  try {
    const response = await request('/v1/chat/completions', {
      method: 'POST', headers: {'Content-Type': 'application/json'},
      body: JSON.stringify(bodyFor(turn)), signal: running.signal});
    for await (const event of serverEvents(response)) {
      take(turn, event);
      speak(turn.answer);
      drawSoon(turn);
    }
  } catch (error) {
    if (running.signal.aborted) turn.finish = 'stopped';
    else turn.fault = error;
  }
  if (chat.running !== running) return; // a new conversation has begun
  chat.running = null;
  showRunning(false);
  speak(turn.answer, true);
  followingEnd(() => finish(turn));
  if (turn.fault?.status === 401 && await askForKey()) { poll(); answer(turn); }
}

/** Takes in one event of the stream. */
function take(turn, event) {
  if (event.error) throw new Refusal(0, event.error.message ?? 'The server could not finish the answer.');
  if (event.usage) turn.usage = event.usage;
  const choice = event.choices?.[0];
  if (choice?.finish_reason) turn.finish = choice.finish_reason;
  const piece = choice?.delta?.content;
  if (!piece) return;
  turn.last = performance.now();
  turn.first ||= turn.last;
  turn.pieces++;
  turn.answer += piece;
}

/** Draws at most once per frame, however fast tokens come. */
function drawSoon(turn) {
  if (turn.drawing) return;
  turn.drawing = true;
  requestAnimationFrame(() => {
    turn.drawing = false;
    if (chat.turns.at(-1) !== turn || !chat.running) return;
    followingEnd(() => { renderMarkdown(turn.text, turn.answer); put(turn.figures, figuresOf(turn)); });
  });
}

function figuresOf(turn) {
  // The first token comes from the prefill: the speed is that of those behind it.
  const tokens = turn.usage?.completion_tokens ?? turn.pieces, seconds = (turn.last - turn.first) / 1000;
  const parts = [plural(tokens, 'token')];
  if (tokens > 1 && seconds > 0.05) parts.push(`${figure((tokens - 1) / seconds)} tok/s`);
  if (turn.usage) {
    const cached = turn.usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`prompt ${count(turn.usage.prompt_tokens)}, ${count(cached)} cached`);
  }
  if (turn.first) parts.push(`first after ${figure((turn.first - turn.began) / 1000)} s`);
  if (turn.finish === 'length') parts.push('cut at max tokens');
  if (turn.finish === 'stopped') parts.push('stopped');
  return parts.join(' · ');
}

/** The end of an answer, good or bad: figures, buttons, the error in words. */
function finish(turn) {
  turn.article.classList.remove('writing');
  turn.article.removeAttribute('aria-busy');
  renderMarkdown(turn.text, turn.answer);
  put(turn.figures, turn.answer ? figuresOf(turn) : turn.finish === 'stopped' ? 'stopped' : '');
  if (turn.fault) {
    const fault = make('p', {className: 'fault', textContent: turn.fault.message});
    fault.setAttribute('role', 'alert');
    turn.foot.before(fault);
  }
  if (turn.answer) turn.foot.append(copyButton('Copy the answer', () => turn.answer));
  const retry = make('button', {type: 'button', className: 'plain retry', textContent: 'Retry'});
  retry.addEventListener('click', () => { answer(turn); byId('question').focus(); });
  turn.foot.append(retry);
}

/** Reads the answer to a screen reader sentence by sentence: token by token it would stutter. */
function speaker() {
  const region = byId('spoken');
  let said = 0;
  region.replaceChildren();
  return (text, all = false) => {
    const rest = text.slice(said), ends = ['. ', '? ', '! ', '\n'].map(mark => rest.lastIndexOf(mark) + 1);
    const end = all ? rest.length : Math.max(...ends);
    if (!end) return;
    region.append(make('span', {textContent: rest.slice(0, end)}));
    said += end;
  };
}

function showRunning(on) {
  put('send', on ? 'Stop' : 'Send');
  put('hint', on ? 'Esc: stop' : 'Shift + Enter: new line');
}

function stop() {
  chat.running?.abort();
  byId('question').focus();
}

function sendQuestion() {
  const box = byId('question'), question = box.value.trim();
  if (!question || chat.running) return;
  for (const id of ['temperature', 'max-tokens']) {
    if (byId(id).checkValidity()) continue;
    showSettings(true); // a field that is hidden cannot say what is wrong with it
    byId(id).reportValidity();
    return;
  }
  box.value = '';
  ask(question);
  box.focus();
}

function newConversation() {
  chat.running?.abort();
  chat.running = null;
  chat.turns = [];
  for (const article of byId('turns').querySelectorAll('article')) article.remove();
  byId('welcome').hidden = false;
  byId('spoken').replaceChildren();
  showRunning(false);
  byId('question').focus();
}

function showSettings(on) {
  byId('settings').hidden = !on;
  byId('settings-button').setAttribute('aria-expanded', on);
}

function startChat() {
  put('base', location.origin + '/v1');
  const examples = ['What is a K/V cache?', 'Write a haiku about memory', 'List the planets by size'];
  byId('examples').append(...examples.map(text => {
    const button = make('button', {type: 'button', textContent: text});
    button.addEventListener('click', () => { ask(text); byId('question').focus(); });
    return make('li', {}, button);
  }));
  byId('composer').noValidate = true; // sendQuestion checks, and opens the settings first
  byId('composer').addEventListener('submit', event => {
    event.preventDefault();
    if (chat.running) stop();
    else sendQuestion();
  });
  byId('question').addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendQuestion();
  });
  document.addEventListener('keydown', event => { if (event.key === 'Escape' && chat.running && !asking) stop(); });
  byId('new').addEventListener('click', newConversation);
  byId('settings-button').addEventListener('click', () => showSettings(byId('settings').hidden));
  byId('key').value = apiKey;
  byId('key').addEventListener('change', event => { setKey(event.target.value.trim()); poll(); });
}
