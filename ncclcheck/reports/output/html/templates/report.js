"use strict";
function selected(code) {
  const range = document.createRange();
  range.selectNodeContents(code);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}
async function copied(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
    return true;
  } catch {
    selected(code);
    return document.execCommand("copy");
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const done = await copied(button.parentElement.querySelector("code"));
    button.textContent = done ? "Copied" : "Press Ctrl+C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}
if (location.hash) {
  const folded = document.getElementById(location.hash.slice(1))?.closest("details");
  if (folded) folded.open = true;
}
