// Small helpers: elements, numbers as text, the clipboard.
'use strict';

const byId = id => document.getElementById(id);

/** An element with properties and children; strings become text nodes, never markup. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Writes only what changed: an untouched node keeps selection and causes no layout. */
function put(target, text) {
  const element = typeof target === 'string' ? byId(target) : target;
  if (element.textContent !== String(text)) element.textContent = text;
}

/** Storage that may be forbidden (private windows, blocked cookies): then nothing is remembered. */
function remembered(storage, name, value) {
  try {
    if (value === undefined) return window[storage].getItem(name) ?? '';
    if (value) window[storage].setItem(name, value);
    else window[storage].removeItem(name);
  } catch { /* goes on without */ }
  return value ?? '';
}

const thousands = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const count = n => thousands.format(n);
const compact = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});
const short = n => n < 10000 ? count(n) : compact.format(n); // 9,999 and 14.2K
const plural = (n, one, many = one + 's') => `${count(n)} ${n === 1 ? one : many}`;
/** Three digits that mean something: 0.42, 7.31, 42.5, 1,234. */
const figure = n => n >= 100 ? count(n) : n >= 10 ? n.toFixed(1) : n.toFixed(n === 0 ? 0 : 2);

function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return `${unit === 0 ? n : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)} ${units[unit]}`;
}

function duration(seconds) {
  const s = Math.floor(seconds), m = Math.floor(s / 60), h = Math.floor(m / 60), d = Math.floor(h / 24);
  return d ? `${d} d ${h % 24} h` : h ? `${h} h ${m % 60} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // outside https and localhost there is no clipboard object
    const field = make('textarea', {value: text, className: 'unseen'});
    document.body.append(field);
    field.select();
    document.execCommand('copy');
    field.remove();
  }
}

function copyButton(label, text) {
  const button = make('button', {type: 'button', className: 'plain', textContent: 'Copy'});
  button.setAttribute('aria-label', label);
  button.addEventListener('click', async () => {
    await copyText(text());
    button.focus();
    put(button, 'Copied');
    setTimeout(() => put(button, 'Copy'), 1500);
  });
  return button;
}
