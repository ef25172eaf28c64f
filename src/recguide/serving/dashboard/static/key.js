// The server's API key: asked for when the server asks, kept as long as the tab lives.

const KEPT = "recguide-api-key";
const dialog = document.getElementById("key-dialog");
const field = document.getElementById("key-field");
const button = document.getElementById("key");
let asking = null;

button.addEventListener("click", () => ask());

/** Like fetch, with the key if there is one; a refusal asks for another, once. */
export async function authorised(path, options = {}) {
  const answer = await fetch(path, withKey(options));
  if (answer.status !== 401) return answer;
  button.hidden = false;
  await ask();
  return fetch(path, withKey(options));
}

function withKey(options) {
  const key = sessionStorage.getItem(KEPT);
  return key ? { ...options, headers: { ...options.headers, Authorization: `Bearer ${key}` } } : options;
}

/** Opens the dialog; several that ask at once get one answer. */
function ask() {
  asking ??= new Promise((done) => {
    field.value = "";
    dialog.returnValue = "";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue === "use" && field.value) sessionStorage.setItem(KEPT, field.value);
      field.value = "";
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}
