// SPDX-License-Identifier: Apache-2.0
// The controller's API. The token is kept for this tab alone, and goes out as a header: never in an address.

const KEY = "tunny-token";
let token = sessionStorage.getItem(KEY) ?? "";

/** Why a request was refused: the sentences of its problem document. */
export class Refused extends Error {
  constructor(status, errors) {
    const text = errors.join(" ");
    super(text.charAt(0).toUpperCase() + text.slice(1));
    this.status = status;
  }
}

/** Whether somebody has signed in. */
export const signedIn = () => token !== "";

/** Remembers a token, or forgets it. */
export function sign(text) {
  token = text;
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

async function request(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...options.headers, Authorization: `Bearer ${token}` }, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, ["The controller does not answer; what is shown may be old."]);
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new Refused(response.status, problem.errors ?? [`The controller answered ${response.status}.`]);
}

/** A value. */
export const get = async (path, signal) => (await request(path, { signal })).json();

/** What becomes of a value. */
export const post = async (path, body, signal) => (await request(path, { method: "POST", body: JSON.stringify(body ?? {}), signal })).json();

/** Objects, a line each. */
export async function list(path, signal) {
  const text = await (await request(path, { signal })).text();
  const lines = text.split("\n").filter((line) => line).map((line) => JSON.parse(line));
  return lines.filter((line) => line.kind);
}

/** Lines as they come; it ends when the controller ends it. */
export async function follow(path, take, signal) {
  const response = await request(path, { signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(line ? JSON.parse(line) : undefined);
  }
}

/** A part of a path or query. */
export const esc = encodeURIComponent;
