// Requests to the server. A refusal is an error that names the invalid field, if there is one.

export class Refusal extends Error {
  constructor(message, field) {
    super(message);
    this.field = field;
  }
}

const AWAY = "The server is not responding.";

export async function post(path, body = {}) {
  return ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

export async function get(path) {
  return ask(path, {});
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin" });
  } catch {
    throw new Refusal(AWAY);
  }
  const isJson = /json/.test(response.headers.get("content-type") ?? "");
  const answer = isJson ? await response.json() : await response.text();
  if (!response.ok) {
    const field = answer.field?.replace(/^config\./, "");
    throw new Refusal(answer.error ?? answer.detail ?? `The server returned status ${response.status}.`, field);
  }
  return answer;
}

/** Convert what was typed to a number if it is one; otherwise leave the text for the server to reject. */
export function typed(text) {
  const trimmed = text.trim();
  return trimmed !== "" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : trimmed;
}
