/**
 * The right to read what the person's program shows. The address has a token that works once. The page
 * gets a session for it, and keeps it in this tab, so that it can be loaded again. A cookie would also be
 * sent to other ports of the machine, which other users may have.
 */

export interface Session {
  key: string;
  /** True if the program shows a recording. */
  recording: boolean;
}

export interface Refused {
  /** Why, and what to do. */
  refused: string;
}

const STORED = "hostloop-session";
const NO_ANSWER = "The program that serves this page does not answer. Start it again, and open the address that it shows.";
const NO_TOKEN = "This address has no token. Open the one that the terminal shows: each browser and tab needs its own.";

type Kept = Pick<Storage, "getItem" | "setItem">;
type Fetch = (path: string, init?: RequestInit) => Promise<Pick<Response, "ok" | "text">>;

/** The storage of this tab. A browser may withhold it: then the page can't be loaded again. */
export function tabStorage(): Kept {
  try {
    return sessionStorage;
  } catch {
    return { getItem: () => null, setItem: () => {} };
  }
}

/** The session for a token, or the one of this tab. */
export async function openSession(token: string, kept: Kept, fetch: Fetch): Promise<Session | Refused> {
  const known = read(kept.getItem(STORED) ?? "");
  if (token === "") return known ?? { refused: NO_TOKEN };
  const answer = await ask(fetch, "session", { method: "POST", headers: { "x-hostloop-token": token } });
  if ("refused" in answer) return known ?? answer;
  kept.setItem(STORED, answer.text);
  return read(answer.text) ?? { refused: NO_ANSWER };
}

/** The recording that the program shows. */
export async function recordingOf(key: string, fetch: Fetch): Promise<{ json: string } | Refused> {
  const answer = await ask(fetch, `recording?${new URLSearchParams({ session: key })}`);
  return "refused" in answer ? answer : { json: answer.text };
}

async function ask(fetch: Fetch, path: string, init?: RequestInit): Promise<{ text: string } | Refused> {
  try {
    const response = await fetch(path, init);
    const text = await response.text();
    return response.ok ? { text } : { refused: text };
  } catch {
    return { refused: NO_ANSWER };
  }
}

function read(json: string): Session | undefined {
  try {
    const { session, recording } = JSON.parse(json) as Record<string, unknown>;
    return typeof session === "string" ? { key: session, recording: recording === true } : undefined;
  } catch {
    return undefined;
  }
}
