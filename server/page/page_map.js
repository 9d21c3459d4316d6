// What the pages of the cache hold, from the statistics, and their map.
'use strict';

const PAGE = 64; // tokens
const KINDS = ['sealed', 'shared', 'open', 'free'];

/** The pages of one sequence. What waits or is swapped out has none in memory. */
function pagesOf(sequence) {
  if (sequence.length <= 0 || ['waiting', 'swapped'].includes(sequence.state)) return {shared: 0, sealed: 0, open: 0};
  const full = Math.floor(sequence.length / PAGE), shared = Math.min(full, Math.floor(sequence.cached_tokens / PAGE));
  return {shared, sealed: full - shared, open: 1};
}

/** Kept prefixes share pages too, and the statistics do not say which; the bytes in use say how many. (Not where
 *  windows drop pages.) So many of their first pages count as shared, and the map adds up to the memory. */
function shareKept(cache, all) {
  if (cache.layers.some(layer => layer.window)) return;
  let surplus = all.reduce((sum, one) => sum + one.sealed, 0) - Math.round(cache.bytes.sealed / cache.page_bytes);
  for (const one of all.filter(({sequence}) => sequence.state === 'cached')) {
    const moved = Math.max(0, Math.min(one.sealed, surplus));
    one.sealed -= moved;
    one.shared += moved;
    surplus -= moved;
  }
}

/** The map's content: runs of pages of one kind and one sequence, free pages last. */
function runsOf(cache, sequences) {
  const runs = [], all = sequences.map(sequence => ({sequence, ...pagesOf(sequence)}));
  shareKept(cache, all);
  for (const {sequence, ...pages} of all) {
    let first = 0;
    for (const kind of ['shared', 'sealed', 'open']) {
      if (pages[kind]) runs.push({kind, sequence, first, pages: pages[kind]});
      first += pages[kind];
    }
  }
  const free = Math.floor(cache.bytes.free / cache.page_bytes);
  if (free > 0) runs.push({kind: 'free', sequence: null, first: 0, pages: free});
  return runs;
}

/** Sequences of a cache in an order that does not change while they run: the map must not jump. */
function sequencesOf(stats, index) {
  const isKept = s => s.state === 'cached';
  return stats.sequences.filter(s => s.cache === index)
    .sort((a, b) => isKept(a) - isKept(b) || a.job - b.job || a.choice - b.choice);
}

/** A kept prefix belongs to no job any more. */
const jobName = s => s.state === 'cached' ? '–' : s.choice ? `${s.job}.${s.choice}` : String(s.job);

// ------------------------------------------------------------------ the map of pages

const map = {runs: [], cells: [], pitch: 0, columns: 1, perCell: 1, height: 0, at: -1};

/** Chooses the size of cells: as large as fits, 4 to 16 pixels; beyond that a cell is several pages. */
function layOut(width) {
  const pages = map.runs.reduce((sum, run) => sum + run.pages, 0), highest = Math.min(340, Math.max(160, width * .55));
  const height = (pitch, cells) => Math.ceil(cells / Math.floor(width / pitch)) * pitch;
  map.pitch = 16;
  while (map.pitch > 4 && height(map.pitch, pages) > highest / 1.6) map.pitch--;
  map.perCell = 1;
  while (height(map.pitch, pages / map.perCell) > highest) map.perCell++;
  map.columns = Math.floor(width / map.pitch);
  map.cells = [];
  for (const run of map.runs)
    for (let page = 0; page < run.pages; page += map.perCell) map.cells.push({run, page});
  // Grows as needed but never shrinks, so that what stands below does not move up and down.
  map.height = Math.max(map.height, Math.ceil(map.cells.length / map.columns) * map.pitch, 3 * map.pitch);
}

/** Draws one cell. Shapes: sealed is full, shared is cut by a diagonal, open is a frame that fills from
 *  below as its tokens come, free is a dot. */
function drawCell(pen, kind, x, y, size, level) {
  const inner = Math.max(1, Math.round(size / 4));
  if (kind === 'free') pen.fillRect(x + (size - inner) / 2, y + (size - inner) / 2, inner, inner);
  else if (kind === 'open') {
    const filled = Math.max(1, Math.round(size * level));
    pen.strokeRect(x + .5, y + .5, size - 1, size - 1);
    pen.fillRect(x, y + size - filled, size, filled);
  } else {
    pen.fillRect(x, y, size, size);
    if (kind !== 'shared') return;
    pen.globalCompositeOperation = 'destination-out';
    pen.globalAlpha = 1;
    pen.lineWidth = Math.max(1, size / 5);
    pen.beginPath();
    pen.moveTo(x, y + size);
    pen.lineTo(x + size, y);
    pen.stroke();
    pen.globalCompositeOperation = 'source-over';
    pen.lineWidth = 1;
  }
}

/** A canvas of that size in CSS pixels, sharp on any screen. */
function penOf(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale); // setting it also clears it
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext('2d');
  pen.scale(scale, scale);
  return pen;
}

/** The colours as they are now; a canvas does not understand light-dark(). */
function colours() {
  return Object.fromEntries(KINDS.map(kind => [kind, getComputedStyle(byId('legend-' + kind)).color]));
}

function drawMap() {
  const canvas = byId('map'), width = canvas.clientWidth;
  if (!width) return; // the other pane is shown
  layOut(width);
  canvas.style.height = map.height + 'px';
  const pen = penOf(canvas, width, map.height), colour = colours(), gap = map.pitch > 7 ? 2 : 1;
  const pointed = map.cells[map.at], place = i => [i % map.columns, Math.floor(i / map.columns)].map(n => n * map.pitch);
  map.cells.forEach(({run}, i) => {
    const [x, y] = place(i);
    pen.fillStyle = pen.strokeStyle = colour[run.kind];
    pen.globalAlpha = !pointed || pointed.run.sequence === run.sequence ? 1 : .3;
    drawCell(pen, run.kind, x, y, map.pitch - gap, run.sequence ? run.sequence.length % PAGE / PAGE : 0);
  });
  if (pointed && document.activeElement === canvas) {
    pen.globalAlpha = 1;
    pen.strokeStyle = getComputedStyle(document.body).color;
    const [x, y] = place(map.at);
    pen.strokeRect(x - .5, y - .5, map.pitch - gap + 1, map.pitch - gap + 1);
  }
  put('scale', `one cell is ${map.perCell > 1 ? `${map.perCell} pages` : 'a page'} of ${PAGE} tokens`);
}

function describe(cell) {
  if (!cell) return 'Point at a page or touch it; by keyboard: the arrow keys, Page Up and Page Down.';
  const {run, page} = cell, s = run.sequence;
  if (!s) return `Free: ${plural(run.pages, 'page')}.`;
  const pages = pagesOf(s), all = pages.shared + pages.sealed + pages.open, number = run.first + page + 1;
  const first = (number - 1) * PAGE, name = s.state === 'cached' ? 'Kept prefix' : `Job ${jobName(s)}, ${s.state}`;
  const held = run.kind === 'open' ? `${s.length % PAGE} of ${PAGE} tokens` : `tokens ${count(first)} to ${count(first + PAGE - 1)}`;
  return `${name}: page ${count(number)} of ${count(all)}, ${run.kind}, ${held}.`;
}

function pointAt(index) {
  map.at = index >= 0 && index < map.cells.length ? index : -1;
  put('detail', describe(map.cells[map.at]));
  drawMap();
}

/** Arrow keys: one cell, or a row of cells; Page Up and Page Down: another sequence. */
function moveInMap(event) {
  const last = map.cells.length - 1, at = Math.max(0, map.at);
  const another = step => {
    let i = at;
    while (i + step >= 0 && i + step <= last && map.cells[i].run.sequence === map.cells[at].run.sequence) i += step;
    return i;
  };
  const targets = {
    ArrowLeft: () => at - 1, ArrowRight: () => at + 1, ArrowUp: () => at - map.columns, ArrowDown: () => at + map.columns,
    PageUp: () => another(-1), PageDown: () => another(1), Home: () => 0, End: () => last,
  };
  if (!targets[event.key]) return;
  event.preventDefault();
  byId('detail').setAttribute('aria-live', 'polite'); // spoken for keys only: a moving mouse would flood it
  pointAt(Math.min(last, Math.max(0, targets[event.key]())));
}

function startMap() {
  const canvas = byId('map');
  const point = event => {
    const box = canvas.getBoundingClientRect(), column = Math.floor((event.clientX - box.left) / map.pitch);
    byId('detail').removeAttribute('aria-live');
    pointAt(column < map.columns ? Math.floor((event.clientY - box.top) / map.pitch) * map.columns + column : -1);
  };
  canvas.addEventListener('pointermove', point);
  canvas.addEventListener('pointerdown', point);
  canvas.addEventListener('pointerleave', event => { if (event.pointerType === 'mouse') pointAt(-1); });
  canvas.addEventListener('focus', () => { if (canvas.matches(':focus-visible')) pointAt(Math.max(0, map.at)); });
  canvas.addEventListener('blur', () => pointAt(-1));
  canvas.addEventListener('keydown', moveInMap);
  new ResizeObserver(() => { map.height = 0; drawMap(); }).observe(canvas.parentElement);
  pointAt(-1);
}

function startLegend() {
  byId('legend').append(...KINDS.map(kind => {
    const item = make('li', {}, make('canvas'), kind + ' ', make('b', {id: 'count-' + kind, textContent: '0'}),
      make('span', {id: 'legend-' + kind, hidden: true}));
    item.lastChild.style.color = `var(--${kind})`; // where colours() reads it
    return item;
  }));
  drawLegend();
}

function drawLegend() {
  const colour = colours();
  for (const kind of KINDS) {
    const pen = penOf(byId('count-' + kind).parentElement.querySelector('canvas'), 12, 12);
    pen.fillStyle = pen.strokeStyle = colour[kind];
    drawCell(pen, kind, 0, 0, 12, .5);
  }
}
