// Which of the two panes is shown, and in which colours; starts everything.
'use strict';

function startFrame() {
  const dark = matchMedia('(prefers-color-scheme: dark)'), root = document.documentElement;
  const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark' : dark.matches;
  const apply = () => {
    byId('theme').setAttribute('aria-pressed', isDark());
    drawLegend();
    drawMap();
  };
  const kept = remembered('localStorage', 'quire-theme');
  if (kept === 'dark' || kept === 'light') root.dataset.theme = kept;
  byId('theme').addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    remembered('localStorage', 'quire-theme', root.dataset.theme);
    apply();
  });
  dark.addEventListener('change', apply);
  for (const button of byId('views').children) button.addEventListener('click', () => {
    document.querySelector('main').dataset.view = button.dataset.view;
    for (const other of byId('views').children) other.setAttribute('aria-pressed', other === button);
  });
  apply();
}

startLegend();
startMap();
startFrame();
startChat();
startBoard();
