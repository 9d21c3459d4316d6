// Markdown of an answer as elements.
'use strict';

// A small part of it: fenced code, lists, headings, paragraphs; inline code, bold, emphasis. All else stays
// as the model wrote it.

/** Cuts a text into blocks: {kind, lines, source}. */
function blocksOf(text) {
  const blocks = [];
  const add = (kind, line) => {
    const last = blocks.at(-1);
    if (last?.kind === kind && kind !== 'heading') last.lines.push(line);
    else blocks.push({kind, lines: [line]});
  };
  let fence = null;
  for (const line of text.split('\n')) {
    const mark = line.match(/^\s*(```+|~~~+)/)?.[1], last = blocks.at(-1);
    if (fence) {
      if (mark?.startsWith(fence) && line.trim() === mark) { fence = null; blocks.push({kind: 'gap', lines: []}); }
      else last.lines.push(line);
    } else if (mark) { fence = mark; blocks.push({kind: 'code', lines: []}); }
    else if (!line.trim()) add('gap', '');
    else if (/^#{1,6} /.test(line)) add('heading', line.replace(/^#+ /, ''));
    else if (/^\s*[-*+] /.test(line)) add('ul', line.replace(/^\s*[-*+] /, ''));
    else if (/^\s*\d{1,4}[.)] /.test(line)) add('ol', line.trim());
    else if (/^\s/.test(line) && ['ul', 'ol'].includes(last?.kind)) last.lines.push(last.lines.pop() + '\n' + line.trim());
    else add('p', line);
  }
  return blocks.filter(block => block.kind !== 'gap');
}

/** Text with `code`, **bold** and *emphasis* as nodes. Marks touch what they enclose: 2 * 3 * 4 has none. */
function inline(text) {
  const marked = /(`[^`\n]+`|\*\*(?!\s)[^*\n]+(?<!\s)\*\*|\*(?!\s)[^*\n]+(?<!\s)\*)/;
  return text.split(marked).filter(Boolean).map(part => {
    if (!marked.test(part)) return part;
    const [tag, width] = part[0] === '`' ? ['code', 1] : part.startsWith('**') ? ['strong', 2] : ['em', 1];
    return make(tag, {textContent: part.slice(width, -width)});
  });
}

function blockElement({kind, lines}) {
  const text = lines.join('\n'), item = line => make('li', {}, ...inline(line));
  switch (kind) {
  case 'code': {
    const code = make('pre', {tabIndex: 0}, make('code', {textContent: text}));
    return make('div', {className: 'block'}, code, copyButton('Copy code', () => text));
  }
  case 'ul':
    return make('ul', {}, ...lines.map(item));
  case 'ol': // a list may be interrupted by code: it goes on with the number that the model gave
    return make('ol', {start: parseInt(lines[0], 10)}, ...lines.map(line => item(line.replace(/^\d+[.)] /, ''))));
  case 'heading':
    return make('h3', {}, ...inline(text));
  default:
    return make('p', {}, ...inline(text));
  }
}

/** Renders a text that grows: only blocks that changed are made again, so that a selection further up
 *  survives and a long answer costs no more per token than a short one. */
function renderMarkdown(container, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, i) => {
    const source = block.kind + block.lines.join('\n'), old = container.children[i];
    if (old?.source === source) return;
    const element = Object.assign(blockElement(block), {source});
    if (old) old.replaceWith(element);
    else container.append(element);
  });
  while (container.children.length > blocks.length) container.lastChild.remove();
}
