// Buttons that copy code. Where a browser forbids it, the code is selected, and its own keys copy it.

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = document.getElementById(button.dataset.copy);
  const status = button.parentElement.querySelector("[role=status]");
  try {
    await navigator.clipboard.writeText(code.textContent);
    status.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(code);
    status.textContent = document.execCommand("copy") ? "Copied." : "Selected: copy it with your keyboard.";
  }
});
