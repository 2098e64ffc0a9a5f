// Fetches the parts of a page that move, every few seconds while somebody looks. One request at a time for each part.
"use strict";

async function refresh(part) {
  if (part.dataset.busy) return;
  part.dataset.busy = "yes";
  try {
    const answer = await fetch(part.dataset.refresh, { headers: { "X-Requested-With": "fetch" } });
    if (answer.redirected) return location.reload(); // the session has ended
    if (!answer.ok) throw new Error(String(answer.status));
    part.innerHTML = await answer.text();
    part.classList.remove("bc-stale");
  } catch {
    part.classList.add("bc-stale");
  } finally {
    delete part.dataset.busy;
  }
}

const parts = document.querySelectorAll("[data-refresh]");
for (const part of parts) {
  if (part.dataset.now) refresh(part);
  setInterval(() => document.hidden || refresh(part), Number(part.dataset.everyS) * 1000);
}
for (const button of document.querySelectorAll("[data-refresh-now]")) {
  button.addEventListener("click", () => parts.forEach(refresh));
}
