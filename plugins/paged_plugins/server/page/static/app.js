// Puts the parts of the page together.

import { About } from "/page/about.js";
import { Chat } from "/page/chat.js";
import { themeChanged } from "/page/colours.js";
import { LiveView } from "/page/live.js";

const THEME = "paged_core.theme";
const THEMES = ["auto", "light", "dark"];
const button = document.getElementById("theme");

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  button.textContent = `Theme: ${theme}`;
  localStorage.setItem(THEME, theme);
  themeChanged();
}

button.addEventListener("click", () => {
  const now = THEMES.indexOf(localStorage.getItem(THEME) ?? "auto");
  setTheme(THEMES[(now + 1) % THEMES.length]);
});
const kept = localStorage.getItem(THEME);
setTheme(THEMES.includes(kept) ? kept : "auto");

new Chat();
new LiveView();
new About();
