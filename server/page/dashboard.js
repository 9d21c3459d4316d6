// Figures of the cache and of the requests, live.
'use strict';

const board = {stats: null, selected: 0, sequences: [], history: [], timer: 0, polling: false};
const MINUTES = 2; // of the small curves

/** Fills a table in place, row by row. */
function fillRows(body, rows) {
  while (body.rows.length > rows.length) body.lastChild.remove();
  rows.forEach(({cells, className = ''}, i) => {
    const row = body.rows[i] ?? body.insertRow();
    row.className = className;
    cells.forEach((text, j) => {
      const cell = row.cells[j] ?? row.insertCell();
      cell.className = body.parentElement.tHead.rows[0].cells[j].className;
      put(cell, text);
    });
  });
}

/** The part of all tokens that a cache must hold: less than 1 where layers see a window only. */
function partInWindows(cache, sequences) {
  let held = 0, all = 0;
  for (const {length} of sequences) {
    for (const {kv_heads, window} of cache.layers) {
      held += kv_heads * (window ? Math.min(length, window) : length);
      all += kv_heads * length;
    }
  }
  return all ? held / all : 1;
}

function showMemory(cache, sequences) {
  const {sealed, open, last_raw, sinks, free, budget} = cache.bytes, resident = sealed + open + last_raw + sinks;
  const bf16 = cache.tokens * cache.bf16_token_bytes * partInWindows(cache, sequences);
  const widest = Math.max(resident, bf16, 1), ratio = bf16 / resident, some = bf16 > 0 && resident > 0;
  put('resident-name', cache.kv);
  put('resident', bytes(resident));
  put('bf16', bytes(bf16));
  const bars = byId('resident-bar').children, words = byId('parts').querySelectorAll('span');
  [sealed, open, last_raw + sinks].forEach((part, i) => {
    bars[i].style.width = part / widest * 100 + '%';
    put(words[i], bytes(part));
  });
  byId('bf16-bar').style.width = bf16 / widest * 100 + '%';
  put('ratio', some ? figure(ratio >= 1 ? ratio : 1 / ratio) + '×' : '–');
  put('ratio-words', !some ? 'no tokens cached yet' : ratio >= 1 ? 'smaller than bf16' : 'larger: open pages are raw');
  put('pool', `${plural(cache.tokens, 'token')} · ${bytes(free)} of ${bytes(budget)} free`);
}

function showPages(cache, sequences) {
  const selected = map.cells[map.at];
  map.runs = runsOf(cache, sequences);
  const sums = Object.fromEntries(KINDS.map(kind => [kind, 0]));
  for (const run of map.runs) sums[run.kind] += run.pages;
  for (const kind of KINDS) put('count-' + kind, count(sums[kind]));
  const words = KINDS.map(kind => `${count(sums[kind])} ${kind}`);
  byId('map').setAttribute('aria-label', `Map of pages: ${words.join(', ')}`);
  drawMap();
  if (selected) put('detail', describe(map.cells[map.at]));
}

function showSequences(sequences) {
  put('sequences-words', sequences.length ? '' : 'none: every page is free');
  fillRows(byId('sequence-rows'), sequences.map(s => {
    const pages = pagesOf(s), all = pages.shared + pages.sealed + pages.open;
    return {cells: [jobName(s), s.state === 'cached' ? 'kept prefix' : s.state, count(s.prompt_tokens),
      count(s.cached_tokens), count(s.length), count(all)]};
  }));
}

/** What is different among the values: "km4:vt4", "km4:vt4, kc8:vt8" or "5 kinds". */
function kindsOf(values) {
  const different = [...new Set(values)];
  return different.length > 3 ? `${different.length} kinds` : different.join(', ');
}

function showLayers(cache) {
  const layers = cache.layers, fallbacks = layers.reduce((sum, layer) => sum + layer.fallbacks, 0);
  const codecs = kindsOf(layers.map(l => `${l.k}:${l.v}`)), kernels = kindsOf(layers.map(l => l.kernel));
  put('layers-words', `${layers.length} · ${codecs} · ${kernels} · ${plural(fallbacks, 'fallback')}`);
  fillRows(byId('layer-rows'), layers.map(layer => ({
    className: layer.fallbacks ? 'warn' : '',
    cells: [layer.layer, layer.k, layer.v, layer.kernel, figure(layer.bits), `${layer.heads} / ${layer.kv_heads}`,
      layer.window ? count(layer.window) : '–', bytes(layer.packed_read), bytes(layer.raw_read), count(layer.fallbacks)],
  })));
}

function showTiles(stats) {
  const {tokens, jobs} = stats, reused = tokens.cached_ram + tokens.cached_store;
  put('decode', figure(tokens.decode_per_second));
  put('prefill', figure(tokens.prefill_per_second));
  drawSpark('decode-line', sample => sample.decode);
  drawSpark('prefill-line', sample => sample.prefill);
  put('hits', tokens.prompt ? `${Math.round(reused / tokens.prompt * 100)} %` : '–');
  byId('hits-bar').style.width = tokens.prompt ? reused / tokens.prompt * 100 + '%' : 0;
  put('hits-words', `${short(reused)} of ${short(tokens.prompt)}`);
  for (const name of ['running', 'waiting', 'swapped']) put(name, count(jobs[name]));
  const ended = ['finished', 'failed', 'refused'].filter(name => jobs[name] || name === 'finished');
  put('jobs-words', ended.map(name => `${count(jobs[name])} ${name}`).join(', '));
}

/** A curve of the last two minutes, by time: a pause of the page is a straight line, not a lie. */
function drawSpark(id, value) {
  const samples = board.history, highest = Math.max(1, ...samples.map(value)), now = samples.at(-1).time;
  const x = sample => 120 - (now - sample.time) / (MINUTES * 60000) * 120, y = sample => 29 - value(sample) / highest * 27;
  const points = samples.map(sample => `${x(sample).toFixed(1)} ${y(sample).toFixed(1)}`);
  const [under, line] = byId(id).children, start = points[0].split(' ')[0];
  line.setAttribute('d', 'M' + points.join('L'));
  under.setAttribute('d', `M${start} 30L${points.join('L')}L120 30Z`);
}

/** The places of the store, the fastest first. */
function showPlaces({tiers}) {
  byId('places').hidden = !tiers.length;
  const failing = tiers.filter(tier => tier.failing).length;
  put('places-words', plural(tiers.length, 'place') + (failing ? `, ${count(failing)} failing` : ''));
  fillRows(byId('place-rows'), tiers.map(tier => ({
    className: tier.failing ? 'warn' : '',
    cells: [tier.place, count(tier.hit_records), count(tier.written_records), count(tier.dropped_records),
      bytes(tier.queued_bytes), count(tier.errors), tier.failing ? tier.error : 'works'],
  })));
}

function showServer(stats) {
  const {model, store, jobs, tokens, steps, swaps} = stats;
  put('server-words', `${stats.version} · up ${duration(stats.uptime_seconds)}`);
  const counted = store && store.max_bytes !== null; // nobody counts what a Redis server holds
  const pairs = {
    'Model': model.name,
    'Architecture': model.architecture,
    'Parameters': count(model.parameters),
    'Context': plural(model.context, 'token'),
    'Weights': bytes(model.weight_bytes),
    'Exact steps': stats.exact ? 'yes' : 'no',
    'Tokens generated': count(tokens.generated),
    'Prompt tokens computed': count(tokens.computed),
    'Reused from memory': count(tokens.cached_ram),
    'Reused from the store': count(tokens.cached_store),
    'Steps': count(steps.count),
    'Rows per step': steps.count ? figure(steps.rows / steps.count) : '–',
    'Swapped out, in': `${count(swaps.out)}, ${count(swaps.in)}`,
    'Jobs submitted': count(jobs.submitted),
    'Cancelled': count(jobs.cancelled),
    'Failed, refused': `${count(jobs.failed)}, ${count(jobs.refused)}`,
    ...(store ? {
      'Store': counted ? `${plural(store.pages, 'page')}, ${bytes(store.bytes)}` : 'in Redis',
      'Store file': counted ? `${bytes(store.file_bytes)} of ${bytes(store.max_bytes)}` : '–',
      'Store hits, misses': `${count(store.hit_pages)}, ${count(store.missed_pages)}`,
      'Added, evicted': `${count(store.added_pages)}, ${counted ? count(store.evicted_pages) : '–'}`,
      'Store errors': count(stats.store_errors),
    } : {'Store': 'none'}),
  };
  const list = byId('server-pairs'), names = Object.keys(pairs);
  if (list.children.length !== names.length)
    list.replaceChildren(...names.map(name => make('div', {}, make('dt', {textContent: name}), make('dd'))));
  names.forEach((name, i) => put(list.children[i].lastChild, pairs[name]));
}

/** What should never be seen is said in words. */
function showWarnings(stats) {
  const layers = stats.caches.flatMap(cache => cache.layers), fallbacks = layers.reduce((sum, l) => sum + l.fallbacks, 0);
  const warnings = [];
  if (fallbacks) warnings.push(`${plural(fallbacks, 'unit')} of attention fell back to the slow reference: see Layers.`);
  if (stats.store_errors) warnings.push(`The page store failed ${plural(stats.store_errors, 'time')}: see Server.`);
  for (const tier of stats.tiers.filter(tier => tier.failing))
    warnings.push(`The store goes on without ${tier.place}: see Store.`);
  notice(warnings.join(' '));
}

function notice(text) {
  put('notice', text);
  byId('notice').hidden = !text;
}

/** A button for each cache, and the choice of a codec, if the server was started with several. */
function showChoices(caches) {
  const buttons = byId('caches'), names = caches.map(cache => cache.kv);
  if (buttons.dataset.names === names.join()) return;
  buttons.dataset.names = names.join();
  buttons.hidden = byId('codec-label').hidden = names.length < 2;
  const options = names.map(name => make('option', {value: name, textContent: name}));
  byId('codec').replaceChildren(...(names.length < 2 ? [] : options));
  buttons.replaceChildren(...names.map((name, i) => {
    const button = make('button', {type: 'button', textContent: name});
    button.addEventListener('click', () => selectCache(i));
    return button;
  }));
  markCache(0);
}

function markCache(index) {
  board.selected = index;
  [...byId('caches').children].forEach((button, i) => button.setAttribute('aria-pressed', i === index));
}

function selectCache(index) {
  markCache(index);
  map.height = 0;
  map.at = -1;
  show(board.stats);
}

function show(stats) {
  board.stats = stats;
  chat.model = stats.model.name;
  put('model', `${stats.model.name} · ${stats.caches.map(cache => cache.kv).join(', ')} · ${stats.caches[0].isa}`);
  showChoices(stats.caches);
  const cache = stats.caches[board.selected], sequences = board.sequences = sequencesOf(stats, board.selected);
  showMemory(cache, sequences);
  showTiles(stats);
  showPages(cache, sequences);
  showSequences(sequences);
  showLayers(cache);
  showPlaces(stats);
  showServer(stats);
  showWarnings(stats);
}

function setLink(kind, text) {
  byId('link').className = `soft small ${kind}`;
  put('link', text);
}

/** Reads /stats once a second while the page can be seen. */
async function poll() {
  clearTimeout(board.timer);
  if (board.polling || document.hidden) return;
  board.polling = true;
  let wait = 1000;
  try {
    const stats = await (await request('/stats')).json(), time = performance.now();
    board.history.push({time, decode: stats.tokens.decode_per_second, prefill: stats.tokens.prefill_per_second});
    while (board.history[0].time < time - MINUTES * 60000) board.history.shift();
    show(stats);
    byId('ask-key').hidden = true;
    setLink('live', 'live');
  } catch (error) {
    setLink('lost', error.status === 401 ? 'locked' : 'no connection');
    notice(error instanceof Refusal ? error.message : `The server's statistics could not be read (${error.message}).`);
    if (error.status === 401) { byId('ask-key').hidden = false; wait = 0; } // until a key is given
    else wait = 3000;
  }
  board.polling = false;
  if (wait) board.timer = setTimeout(poll, wait);
}

function startBoard() {
  byId('codec').addEventListener('change', event => selectCache(event.target.selectedIndex)); // see what you use
  const rows = byId('sequence-rows');
  rows.addEventListener('pointerover', event => {
    const sequence = board.sequences[event.target.closest('tr').sectionRowIndex];
    pointAt(map.cells.findIndex(cell => cell.run.sequence === sequence));
  });
  rows.addEventListener('pointerleave', () => pointAt(-1));
  byId('ask-key').addEventListener('click', async () => { if (await askForKey()) poll(); });
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) setLink('', 'paused'); // the next poll returns at once
    else poll();
  });
  poll();
}
